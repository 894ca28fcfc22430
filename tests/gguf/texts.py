# ruff: noqa: RUF001 (letters that look like others are the point)
"""Texts in which tokenizers tend to differ: spaces, digits, code, scripts, emoji, marks."""

from __future__ import annotations

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "",
    " ",
    "   leading and trailing   ",
    "two  spaces, three   spaces\tand a\t\ttab",
    "line one\nline two\r\nline three\n\n\n  indented",
    "I'll say it's what they'd do; we've seen, you're sure, I'm not. DON'T! IT'S",
    "In 1984, 3.14159 and 1,000,000 differ by 42%; 0x1F, 1e-05, ２３, x²",
    "def f(x: int) -> int:\n    return x ** 2  # squared\n\n\tif x != 0 and y[1:] == {'a': 1}: pass",
    'https://example.org/a_b/c-d?e=f&g=%20h#i <tag attr="value"/> a@b.cd',
    "Grüße aus Köln: Äpfel, Öl, ß, naïve café, e\u0301 and \u00e9, ﬁ, Å",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم",
    "你好，世界。これはテストです。안녕하세요 세계 ไทยไม่มีช่องว่าง",
    "👋🏽 family 👨‍👩‍👧‍👦, flag 🇩🇪, heart ❤️, zero\u200bwidth, nbsp\u00a0here, em\u2003space",
    "अनुच्छेद हिन्दी में, বাংলা, தமிழ்",
    "\x00\x01\x7f control, \ufeff bom, \ufffd, 𝔘𝔫𝔦𝔠𝔬𝔡𝔢, 𠜎",
    "!!!???...---___***///\\\\|||~~~```\"\"\"''' $5 +6 =7 <8> ^9",
    "CamelCaseWord snake_case_word SHOUTING mixedCASE123abc",
    "a" * 60 + " " * 17 + "b",
)

SPACES_BEFORE_NUMBERS = ("a  12", "x   3\n    4", "volume ² and ⅷ")
"""Where a rule that takes single digits first leaves other pieces than GPT-2's."""
