"""What the tests need from npm: `package.json` lists it, `make test` installs it into `.node`."""
