"""The building plan of the house, as tests: pleas fail, tests do not."""
