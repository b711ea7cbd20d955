"""What a line of ours takes from an error of anybody's code."""

from protos.errors import first_line


def test_the_first_line_that_is_one_or_the_kind() -> None:
    assert first_line(RuntimeError("no such file\nhere is some advice")) == "no such file"
    assert first_line(ValueError("\n  why\n")) == "why"
    assert first_line(MemoryError()) == "MemoryError"
