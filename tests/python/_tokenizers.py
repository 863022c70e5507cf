"""Tokenisers trained on Python's standard library, texts to try them on, and the comparison of our ids and offsets with
those of `tokenizers`."""

import functools
import json
import random
import struct
import subprocess
import sysconfig
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from conftest import BUILD

ORACLE = BUILD / "tests" / "tokenizer_oracle"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
          r"\s+(?!\S)|\s")  # by PCRE2
O200K = "|".join([  # by PCRE2
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


@functools.cache
def corpus():
    """Lines of the standard library's sources, and a few of other scripts."""
    lines = []
    for name in ("argparse", "heapq", "json/decoder", "textwrap", "statistics", "html/entities", "this"):
        lines += (Path(sysconfig.get_path("stdlib")) / f"{name}.py").read_text("utf-8").splitlines()
    lines += ["Ünïcödé naïve café résumé Straße œuvre", "Съешь же ещё этих мягких французских булок", "今日は良い天気ですね。日本語",
              "我能吞下玻璃而不伤身体", "الحب سماء لا تمطر غير الأحلام", "हिन्दी में लिखा हुआ पाठ", "한국어 문장입니다", "👩‍👩‍👧‍👦 🇩🇪 👍🏽 emoji"] * 20
    return lines


def bpe(vocab=3000, special=("<|endoftext|>",), **options):
    """The model's options can hardly be given to a trainer, so they are set behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    for name, value in options.items():
        setattr(tokenizer.model, name, value)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def bert(lower=True, vocab=3000):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=vocab, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")])
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def slow_tokenizer(folder):
    """Writes one whose pattern needs more steps for 40 letters than PCRE2 gets."""
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+[bc]"}, "behavior": "Isolated"},
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))


def gpt2():
    tokenizer = bpe()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta():
    tokenizer = bpe(special=("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True,
                                                            add_prefix_space=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    return tokenizer


def split_bytes(pattern, **options):
    def make():
        special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
        tokenizer = bpe(special=special, ignore_merges=True, **options)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
                                          special_tokens=[(special[0], tokenizer.token_to_id(special[0]))])])
        return tokenizer
    return make


def sentencepiece_like():
    """Llama 2: characters, spaces as U+2581, bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.train_from_iterator(corpus()[:1500], trainers.BpeTrainer(vocab_size=1500, special_tokens=special[:3],
                                                                      show_progress=False, limit_alphabet=80))
    import json
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    for token in special[3:]:
        vocab[token] = len(vocab)
    state["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def clip():
    """Ends of words are marked; lower case, NFC, white space made one."""
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                                 normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=2000, end_of_word_suffix="</w>", special_tokens=["<|startoftext|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0),
                                                            trim_offsets=False, add_prefix_space=False)
    tokenizer.decoder = decoders.BPEDecoder()  # of tokens in the byte alphabet: a test of the decoder alone
    return tokenizer


def characters(normalizer, splitter, unknown="<unk>", **options):
    """A BPE of characters behind any normaliser and pre-tokeniser."""
    def make():
        tokenizer = Tokenizer(models.BPE(unk_token=unknown, **options))
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = splitter
        tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
            vocab_size=2000, special_tokens=[unknown] if unknown else [], show_progress=False, limit_alphabet=300,
            **{k: v for k, v in options.items() if k == "continuing_subword_prefix"}))
        return tokenizer
    return make


def with_added(make):
    """Added tokens of every kind."""
    def added():
        tokenizer = make()
        tokenizer.add_special_tokens([AddedToken("<|x|>", normalized=False, special=True),
                                      AddedToken("<|x|>y", normalized=False, special=True),
                                      AddedToken("<left>", lstrip=True, special=True, normalized=False),
                                      AddedToken("<right>", rstrip=True, special=True, normalized=False)])
        tokenizer.add_tokens([AddedToken("Straße", single_word=True), AddedToken("importing", normalized=True),
                              AddedToken("both", lstrip=True, rstrip=True, normalized=True),
                              AddedToken("日本", normalized=False), AddedToken("ÉTÉ", normalized=True)])
        return tokenizer
    return added


def pre(name, *arguments, **options):
    return getattr(pre_tokenizers, name)(*arguments, **options)


CONFIGURATIONS = {
    "bert-uncased": bert,
    "bert-cased": lambda: bert(lower=False),
    "bert-added": with_added(bert),
    "gpt2": gpt2,
    "gpt2-added": with_added(gpt2),
    "roberta": roberta,
    "llama3": split_bytes(LLAMA3),
    "llama3-added": with_added(split_bytes(LLAMA3)),
    "qwen2": split_bytes(QWEN2),
    "cl100k": split_bytes(CL100K),
    "o200k": split_bytes(O200K),
    "llama2": sentencepiece_like,
    "clip": clip,
    "nfc-whitespace": characters(normalizers.NFC(), pre("Whitespace")),
    "nfd-accents": characters(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), pre("WhitespaceSplit")),
    "nfkc-lower-digits": characters(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), pre("Sequence", [
        pre("WhitespaceSplit"), pre("Digits", individual_digits=True), pre("Punctuation", "contiguous")])),
    "nfkd-strip-prefix": characters(normalizers.Sequence([normalizers.NFKD(), normalizers.Strip(), normalizers.Nmt()]),
                                    pre("Sequence", [pre("WhitespaceSplit"), pre("Digits")]),
                                    continuing_subword_prefix="##"),
    "behaviours": characters(normalizers.Replace(Regex("[aeiou]+"), "V"), pre("Sequence", [
        pre("Split", " ", "merged_with_previous"), pre("Split", Regex(r"[,.;]"), "merged_with_next"),
        pre("Split", Regex(r"\d+"), "removed"), pre("Split", "e", "contiguous")]), unknown=None),
    "words": characters(None, pre("Sequence", [pre("Split", Regex(r"\b\w+\b"), "isolated"),
                                               pre("CharDelimiterSplit", "x")]), fuse_unk=True),
}


@functools.cache
def code_points():
    """All that are assigned, those that combine, and blocks of 256 with all others too."""
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    used = [b for b in range(0, 0x110000, 256) if b < 0xD800 or 0xE000 <= b < 0x32400 or 0xE0000 <= b < 0xE0200]
    return assigned, [c for c in assigned if unicodedata.combining(c)], [[chr(c) for c in range(b, b + 256)] for b in used]


@functools.cache
def texts(count, seed):
    """Texts of every kind, the same for the same seed."""
    rng = random.Random(seed)
    assigned, marks, used = code_points()
    spaces = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\x0b", "\x85", "\ufeff", "\u180e"]
    emoji = ["👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "😀"]
    pieces = ["don't", "WE'LL", "it'ſ", "I'm", "'", "'''", "123456", "3.14", "x²", "Ⅷ", "½", "İstanbul", "ΣΑΣ", "ǅ", "ﬁ", "ﷺ", "각", "각",
              "e\u0301", "\u0301", "q\u0307\u0323", "ÅÅ", "ﾊﾟ", "中文", "<|x|>", "<|x|>y", "<left>", "<right>", "Straße", "both",
              "importing", "[MASK]", "<mask>", "[CLS]", "<|endoftext|>", "</s>", "日本", "ÉTÉ", "été", "##ing", "Ġ", "▁", "\x00",
              "\ufffd", "a" * 150, "\U00010d50", "\U00016ea0", "\U0001e4d0", "\u0897", "_", "snake_case", "CamelCase"]
    lines = corpus()
    cover = list(used)
    rng.shuffle(cover)

    def one(i):
        kind = rng.randrange(9)
        if i < len(cover):  # every block once, whole
            return "".join(cover[i]) if i % 2 else " ".join(cover[i])
        if kind == 0:
            return "".join(rng.choices(rng.choice(used), k=rng.randrange(1, 24)))
        if kind == 1:
            return bytes(rng.choices(range(256), k=rng.randrange(40))).decode("utf-8", "replace")
        if kind == 2:
            return "".join(rng.choice(pieces + spaces) for _ in range(rng.randrange(12)))
        if kind == 3:
            return "".join(rng.choice(assigned) + rng.choice(marks) * rng.randrange(3) for _ in range(rng.randrange(10)))
        if kind == 4:
            return "".join(rng.choice(spaces) * rng.randrange(4) + rng.choice(["a", "1", ".", "é", ""]) for _ in range(8))
        if kind == 5:
            return "".join(rng.choice(emoji + spaces + ["x"]) for _ in range(rng.randrange(8)))
        if kind == 6:
            return "".join(rng.choice("abcdefghij \n\t0123456789'\"()[]{}:;,.#_-+*/=<>|\\") for _ in range(rng.randrange(60)))
        if kind == 7:
            return "\n".join(rng.choice(lines) for _ in range(rng.randrange(1, 4)))
        return rng.choice(lines)

    return [one(i) for i in range(count)]


def run(*arguments, data=b""):
    done = subprocess.run([ORACLE, *map(str, arguments)], input=data, capture_output=True, timeout=1800)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def framed(strings):
    return b"".join(struct.pack("<I", len(b)) + b for b in (s.encode() for s in strings))


def records(out):
    """[(ids, types, spans)] from what the oracle writes."""
    numbers = struct.unpack(f"<{len(out) // 4}I", out)
    at, found = 0, []
    while at < len(numbers):
        count = numbers[at]
        rows = numbers[at + 1:at + 1 + 4 * count]
        found.append((list(rows[::4]), list(rows[1::4]), list(zip(rows[2::4], rows[3::4]))))
        at += 1 + 4 * count
    return found


def in_characters(text, spans):
    """Spans of bytes as spans of characters, as `tokenizers` converts them."""
    if text.isascii():
        return spans
    of_byte = [i for i, c in enumerate(text) for _ in c.encode()]
    end = len(of_byte)
    of_byte.append(len(text))
    return [(of_byte[a], of_byte[b]) if b <= end else (a, b) for a, b in spans]


def compare(path, tokenizer, strings, pairs=False, special=True, max_length=0, pad_to=0):
    """Fails with the first text whose tokens differ."""
    out = run(path, "encode", int(special), max_length, pad_to, *(["pair"] if pairs else []), data=framed(strings))
    inputs = list(zip(strings[::2], strings[1::2])) if pairs else strings
    theirs = tokenizer.encode_batch(inputs, add_special_tokens=special)
    ours = records(out)
    assert len(ours) == len(theirs)
    for text, mine, other in zip(inputs, ours, theirs):
        assert mine[0] == other.ids, f"{text!r}\nours   {mine[0]}\ntheirs {other.ids}\n{other.tokens}"
        assert mine[1] == other.type_ids, f"{text!r}: {mine[1]} {other.type_ids}"
        if pairs:
            spans = list(mine[2])
            for sequence in (0, 1):
                of_it = [i for i, one in enumerate(other.sequence_ids) if one == sequence]
                for i, span in zip(of_it, in_characters(text[sequence], [mine[2][i] for i in of_it])):
                    spans[i] = span
        else:
            spans = in_characters(text, mine[2])
        assert spans == other.offsets, f"{text!r}\nours   {spans}\ntheirs {other.offsets}\n{other.tokens}"
