"""Signs for a terminal that cannot show ours: ρ as rho, × as x, … as three dots, and so on."""

from __future__ import annotations

import codecs
import sys
import unicodedata

_SIGNS = {
    "×": "x",
    "·": "*",
    "±": "+/-",
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "‖": "||",
    "∥": "||",
    "√": "sqrt",
    "∇": "grad",
    "∞": "inf",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "λ": "lambda",  # Unicode calls it lamda
    "Λ": "Lambda",
    "∈": "in",
    "⟨": "<",
    "⟩": ">",
    "←": "<-",
    "→": "->",
    "°": " degrees",
    "⊥": "_|_",
    "ℓ": "l",
    "½": "1/2",
    "•": "*",
    "⁺": "+",
    "⁻": "-",
    "ᵀ": "T",
    "\ufffd": "?",
    "\xa0": " ",
    **dict.fromkeys("‘’′", "'"),
    **dict.fromkeys("“”″", '"'),
    **dict.fromkeys("─━═╌╍┄┅╴╶╸╺", "-"),
    **dict.fromkeys("│┃║╎╏┆┇╵╷╹╻", "|"),
}
NAME = "steppe-signs"


def write_any_text() -> None:
    """Let the standard streams write what their encoding does not have as ASCII, where that would be an error."""
    codecs.register_error(NAME, _replace)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "backslashreplace") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=NAME)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = [_in_ascii(sign) for sign in error.object[error.start : error.end]]
    return "".join(signs), error.end


def _in_ascii(sign: str) -> str:
    known = _SIGNS.get(sign)
    if known is not None:
        return known
    if "\u2500" <= sign <= "\u257f":  # corners and crossings of boxes
        return "+"
    words = unicodedata.name(sign, "").split()
    if words[:1] == ["GREEK"] and "LETTER" in words:
        return words[-1].capitalize() if "CAPITAL" in words else words[-1].lower()
    plain = unicodedata.normalize("NFKD", sign)  # digits and letters above and below the line
    if plain != sign and plain.isascii():
        return plain
    return sign.encode("ascii", "backslashreplace").decode()
