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


CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Cf Zs Zl Zp".split()


def stand_ins():
    """[(first, last, stand-in)]: runs of what is newer than Unicode 14, and something older of the same category and size in
    UTF-8, from Unicode 3.2 where there is one. Chinese stands for Chinese."""
    old = unicodedata.ucd_3_2_0
    candidates = {}
    for c in [c for c in POINTS if old.category(chr(c)) == unicodedata.category(chr(c))] + POINTS:
        candidates.setdefault((unicodedata.category(chr(c)), len(chr(c).encode())), c)
    runs = []
    for name in CATEGORIES:
        for c in sorted(c for c in matched(rf"\p{{{name}}}") if unicodedata.category(chr(c)) == "Cn"):
            instead = 0x20000 if c >= 0x20000 and name == "Lo" else candidates[name, len(chr(c).encode())]
            if runs and runs[-1][1] == c - 1 and runs[-1][2] == instead:
                runs[-1][1] = c
            else:
                runs.append([c, c, instead])
    # U+180E is white space for PCRE2 alone.
    return sorted([(0x180E, 0x180E, 0x200B)] + [tuple(run) for run in runs])


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
    instead = stand_ins()
    print("""}};

const std::array<StandIn, unicode_stand_ins> unicode_stand_in_table = {{""")
    for i in range(0, len(instead), 4):
        print("  " + " ".join(f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}," for a, b, c in instead[i:i + 4]))
    print("""}};
// clang-format on

}  // namespace echelon::tok""")
    print(f"unicode_runs = {len(runs)}, unicode_new_cases = {len(lowers)}, unicode_stand_ins = {len(instead)}", file=sys.stderr)


if __name__ == "__main__":
    main()
