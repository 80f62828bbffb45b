"""Takes secrets out of texts and objects before anybody sees them. Pure.

By shape, not by list: nobody knows every secret of a cluster, but key material looks like key material. What is doubtful
goes: a diagnosis can do without a word, a leaked key cannot be taken back.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

GONE = "[redacted]"

# A key names a secret when its *last* word does: `password`, `client-secret`, `DB_PASSWORD`; `secretName` only points at one.
_WORDS = (
    r"(?:passw(?:or)?d|passphrase|secret|token|credentials?|api[-_]?key|access[-_]?key|secret[-_]?key|private[-_]?key"
    r"|encryption[-_]?secret|key[-_]?data|auth|cookie)"
)
_SECRET_KEY = re.compile(rf"(?:^|[\w.-]*?){_WORDS}$", re.IGNORECASE)
_POINTERS = re.compile(r"^(?:true|false|null|none|)$", re.IGNORECASE)

_PEM = re.compile(
    r"-----BEGIN ([A-Z0-9 ]+)-----"
    r"(?:.*?-----END \1-----|(?:[A-Za-z0-9+/=\s]|\\n|(?:Proc-Type|DEK-Info|Version|Comment): [^\n]*)*)",  # cut off: no end
    re.DOTALL,
)
_PEM_END = re.compile(r"\A(?:[A-Za-z0-9+/=\s]|\\n)*-----END ([A-Z0-9 ]+)-----")  # a log tail that begins inside a block
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"LS0tLS1CRUdJTi(?:[A-Za-z0-9+/=]|\\n|\n\s*(?=[A-Za-z0-9+/=]{24}))*"), "[redacted base64 of PEM]"),
    (re.compile(r"\beyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?"), "[redacted JWT]"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {GONE}"),
    (re.compile(r"(authorization[\"']?\s*[:=]\s*)(?!bearer|basic)\S+", re.IGNORECASE), rf"\1{GONE}"),
    (re.compile(r"(://[^/\s:@\"']*:)[^/\s@\"']+@"), rf"\1{GONE}@"),
    (re.compile(r"://[\w%.~+-]{16,}@"), f"://{GONE}@"),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abpr]-|pul-|AGE-SECRET-KEY-|hvs\.)[\w-]{16,}"), GONE),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), GONE),
    (re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"), "[redacted bootstrap token]"),  # Talos' and kubeadm's shape
)
_FLAG = re.compile(rf"(--[\w-]*?{_WORDS}[= ])(?:\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE)
_PAIR = re.compile(
    rf"(\\?[\"']?(?<![\w.-])[\w.-]*?{_WORDS}\\?[\"']?\s*[:=]\s*)(\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|'[^']*'|[^\s,;}}\]]+)",
    re.IGNORECASE,
)
_BASE64 = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{22,}={0,2}(?![\w+/=-])")
_BITS = 4.2  # per character: 32 random bytes in base64 have 4.4 to 5.2, paths and CamelCase names below 4.1
_LONG = 40

_SECRET_KIND = re.compile(r"\\?[\"']?kind\\?[\"']?\s*:\s*\\?[\"']?Secret\b")
_YAML_DATA = re.compile(r"(?m)^([ \t-]*)(data|stringData):[ \t]*\n((?:\1[ \t]+.*(?:\n|\Z))+)")
_ESCAPED_DATA = re.compile(r"((?:data|stringData):)(?:\\n\s+[\w.-]+:\s*[^\s\\]+)+")  # YAML inside JSON
_JSON_DATA = re.compile(r"(\\?\"(?:data|stringData)\\?\"\s*:\s*)\{[^{}]*\}")


def clean(text: str) -> str:
    """`text` without key material: PEM, JWTs, bearer tokens, passwords in URLs and in pairs, base64 of keys, Secrets' data."""
    if _SECRET_KIND.search(text):
        text = _YAML_DATA.sub(rf"\1\2: {GONE}\n", text)
        text = _ESCAPED_DATA.sub(rf"\1 {GONE}", text)
        text = _JSON_DATA.sub(rf'\1"{GONE}"', text)
    text = _PEM.sub(r"[redacted PEM: \1]", text)
    text = _PEM_END.sub(r"[redacted PEM: \1]", text)
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    text = _FLAG.sub(rf"\1{GONE}", text)
    text = _PAIR.sub(_pair, text)
    return _BASE64.sub(lambda m: GONE if _is_key_material(m[0]) else m[0], text)


def clean_object(value: Any, *, key: str = "") -> Any:
    """JSON-like data without key material: also what only its key, or its object's kind, gives away."""
    if isinstance(value, Mapping):
        hidden = {"data", "stringData", "binaryData"} if value.get("kind") == "Secret" else frozenset[str]()
        named = str(value.get("name", "")) if set(value) >= {"name", "value"} else ""  # an environment variable
        return {
            name: GONE
            if name in hidden or name == "kubectl.kubernetes.io/last-applied-configuration"
            else clean_object(item, key=named if name == "value" and named else str(name))
            for name, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [clean_object(item, key=key) for item in value]
    if isinstance(value, bytes):
        return GONE
    if isinstance(value, str):
        return GONE if _SECRET_KEY.match(key) and not _POINTERS.match(value) else clean(value)
    return value


def _pair(match: re.Match[str]) -> str:
    quote = match[2][0] if match[2][0] in "\"'" else ""
    bare = match[2].strip("\"'\\")
    if _POINTERS.match(bare) or bare.startswith("[redacted"):
        return match[0]
    return f"{match[1]}{quote}{GONE}{quote}"


def _is_key_material(text: str) -> bool:
    """Long, mixed and without rhythm, as only encoded random bytes are. Digests are hexadecimal, and public."""
    body = text.rstrip("=")
    mixed = all(re.search(kind, body) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    if not mixed:
        return False
    if text.endswith("="):
        return True
    return len(body) >= _LONG and _bits(body) >= _BITS


def _bits(text: str) -> float:
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
