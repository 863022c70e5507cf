"""Writes echelon/data/tokenizer/unicode_table.cpp: what Hugging Face's `tokenizers` takes each code point for.

    python tests/tools/unicode_table.py > echelon/data/tokenizer/unicode_table.cpp

Each property comes from a library of its own with a Unicode version of its own, so the table asks the package itself:
one text with every code point goes through the parts that use the property.
"""

import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
EVERY = "".join(map(chr, POINTS))


def matched(pattern):
    """The code points that a pattern matches."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    return {ord(c) for text, _ in split.pre_tokenize_str(EVERY) for c in text}


def removed(normalizer):
    return {c for c in POINTS if normalizer.normalize_str(chr(c)) == ""}


def isolated(splitter):
    return {c for c in POINTS if len(splitter.pre_tokenize_str(f"a{chr(c)}b")) == 3}


def bert(**on):
    return normalizers.BertNormalizer(**dict(clean_text=False, handle_chinese_chars=False, strip_accents=False,
                                             lowercase=False) | on)


def with_forms():
    """Code points that decompose or are reordered: U+0345 has the highest combining class."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    return {c for c in POINTS if nfkd.normalize_str(chr(c)) != chr(c) or c == 0x345
            or nfd.normalize_str("a\u0345" + chr(c))[1] != "\u0345"}


def properties():
    """In the order of the bits in unicode.h."""
    words = pre_tokenizers.Whitespace()
    return [
        matched(r"\p{L}"), matched(r"\p{N}"), matched(r"\s"),
        isolated(pre_tokenizers.Punctuation()),
        isolated(pre_tokenizers.Digits()),
        {c for c in POINTS if len(words.pre_tokenize_str(f"a{chr(c)}b")) == 1},
        removed(bert(strip_accents=True)), removed(bert(clean_text=True)), removed(normalizers.StripAccents()),
        with_forms(),
        {c for c in matched(r"\P{Cn}") if unicodedata.category(chr(c)) == "Cn"},
    ]


def main():
    assert unicodedata.unidata_version == "14.0.0", "the last bit is for PCRE2 of Unicode 14: use Python 3.11"
    flags = [0] * 0x110000
    for bit, points in enumerate(properties()):
        for c in points:
            flags[c] |= 1 << bit
    runs = [c << 11 | flags[c] for c in range(0x110000) if c == 0 or flags[c] != flags[c - 1]]
    lowers = [(c, normalizers.Lowercase().normalize_str(chr(c))) for c in POINTS
              if unicodedata.category(chr(c)) == "Cn"]
    lowers = [(c, ord(text)) for c, text in lowers if ord(text) != c]
    print(f"""// Made by tests/tools/unicode_table.py from tokenizers {tokenizers.__version__}; do not edit.
#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {{

// clang-format off
const std::array<std::uint32_t, unicode_runs> unicode_run_table = {{""")
    for i in range(0, len(runs), 10):
        print("  " + ", ".join(f"0x{run:08x}" for run in runs[i:i + 10]) + ",")
    print("""};

const std::array<CasePair, unicode_new_cases> unicode_new_case_table = {{""")
    for i in range(0, len(lowers), 6):
        print("  " + " ".join(f"{{0x{a:x}, 0x{b:x}}}," for a, b in lowers[i:i + 6]))
    print("""}};
// clang-format on

}  // namespace echelon::tok""")
    print(f"unicode_runs = {len(runs)}, unicode_new_cases = {len(lowers)}", file=sys.stderr)


if __name__ == "__main__":
    main()
