"""What a client, a command or a server said is data: before it goes into a log or a message, nothing in it can act.

An escape sequence would move the cursor of whoever reads it, a line break would forge a line of ours, and half of a
surrogate pair cannot be written at all.
"""

LINE = 300  # characters of what somebody said in one line


def plain(text: str) -> str:
    """`text` with all that cannot be seen spelled out; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def one_line(text: str, most: int = LINE) -> str:
    """`text` on one line of at most `most` characters."""
    text = plain(" ".join(text[: 4 * most].split()))
    return text if len(text) <= most else f"{text[: most - 3]}..."
