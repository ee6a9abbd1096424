"""Files with a few bytes changed, as hypothesis finds them."""

from hypothesis import strategies as st

_NUMBERS = (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\0\0\0\x80")


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """One of the originals with up to eight places changed, removed, filled or cut."""
    content = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 8))):
        # Formats keep what describes the rest at one end.
        place = draw(st.integers(0, len(content)) | st.integers(0, 300).map(len(content).__sub__))
        place = max(0, min(place, len(content)))
        match draw(st.sampled_from(["change", "remove", "insert", "number", "cut"])):
            case "change":
                content[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            case "remove":
                del content[place : place + draw(st.integers(1, 8))]
            case "insert":
                content[place:place] = draw(st.binary(min_size=1, max_size=8))
            case "number":
                content[place : place + 4] = draw(st.sampled_from(_NUMBERS))
            case "cut":
                del content[place + 300 :]
    return bytes(content)
