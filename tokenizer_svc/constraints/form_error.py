"""Why a constraint cannot be served."""


class FormError(Exception):
    """A constraint that cannot be read, met or served; the message is one line for its author."""
