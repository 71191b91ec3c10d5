"""JSON size: how many values a JSON text has and how deep they are, counted before an object is built of any of them.

In:    the bytes of a JSON text, or of something that is none
Out:   nothing; or a 400
Owns:  how deep a body may be
Never: a regular expression; more than PIECE bytes at a time, so that other threads get the interpreter in between

One pass, linear in the bytes. What follows the first mistake of a text is counted as it comes: the parser refuses such a text.
"""

from serve.errors import bad_request

PIECE = 64 << 10
MOST_DEPTH = 32
MOST_FIELDS = 1000
"""of the outermost object; what it has more than it needs is carried through all that is done with it"""
_OTHERS = bytes(set(range(256)) - set(b",[]{}"))
_COMMA, _CLOSING = ord(","), frozenset(b"]}")


def check_json(raw: bytes, most_values: int) -> None:
    """Checks that a text has at most so many values, MOST_FIELDS of them outermost, and none deeper than MOST_DEPTH.

    Raises:
        ApiError: 400
    """
    fields = values = depth = place = 0
    is_in_string = False
    while place < len(raw):
        piece = raw[place : place + PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = raw[place : place + PIECE + 1]  # a backslash stays with what it escapes
        place += len(piece)
        runs = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')  # outside and inside strings by turns
        signs = b"".join(runs[int(is_in_string) :: 2]).translate(None, delete=_OTHERS)
        is_in_string ^= len(runs) % 2 == 0
        for sign in signs:
            if sign == _COMMA:
                fields += depth == 1
            elif sign in _CLOSING:
                depth -= 1
            elif (depth := depth + 1) > MOST_DEPTH:
                raise bad_request("invalid_json", f"the JSON is nested too deeply: the limit is {MOST_DEPTH}")
        values += len(signs) - signs.count(b"]") - signs.count(b"}")
        if values > most_values:
            raise bad_request("too_many_values", f"there are more than {most_values} fields and elements: send fewer")
        if fields >= MOST_FIELDS:
            raise bad_request("too_many_values", f"there are more than {MOST_FIELDS} fields: leave unknown ones out")
        if depth < 0:
            return  # no JSON, as the parser will say
