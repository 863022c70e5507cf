"""Echelon against BERT and DistilBERT as transformers has them, for masked words and for classification: same weights
and same padded batch give the same loss, the same gradients and the same training. In fp64 to 1e-10; in fp32 to 1e-5
of each gradient's norm. Documents that are packed into one row give what they give in rows of their own."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from oracle_case import Case, Reference, assert_all_close, part  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(1)  # models this small only lose by more

# Batches padded to less than the context and to all of it; heads of 12 and of 10. Rows of 130 are more than a block
# of our attention.
SIZES = {
    "small": dict(layers=2, width=48, heads=4, ffn=80, vocab=97, context=24, lengths=(20, 3, 11, 1), labels=2),
    "larger": dict(layers=3, width=80, heads=8, ffn=320, vocab=256, context=130, lengths=(130, 61, 100, 48), labels=5),
}
CASES = [(size, name, task) for size in SIZES for name in ("bert", "distilbert") for task in ("classify", "mlm")]


def make_model(size, name, task):
    """Random everywhere: biases and norms too, since zeros and ones would hide mistakes."""
    s = SIZES[size]
    torch.manual_seed(7)
    common = dict(vocab_size=s["vocab"], max_position_embeddings=s["context"], num_labels=s["labels"],
                  attn_implementation="eager")
    if name == "bert":
        config = transformers.BertConfig(num_hidden_layers=s["layers"], hidden_size=s["width"],
                                         num_attention_heads=s["heads"], intermediate_size=s["ffn"], type_vocab_size=3,
                                         hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **common)
        classes = transformers.BertForSequenceClassification, transformers.BertForMaskedLM
    else:
        config = transformers.DistilBertConfig(n_layers=s["layers"], dim=s["width"], n_heads=s["heads"],
                                               hidden_dim=s["ffn"], dropout=0.0, attention_dropout=0.0,
                                               seq_classif_dropout=0.0, **common)
        classes = transformers.DistilBertForSequenceClassification, transformers.DistilBertForMaskedLM
    model = classes[task == "mlm"](config).double()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            norm = "norm" in parameter_name.lower() and parameter_name.endswith("weight")
            parameter.copy_((1.0 if norm else 0.0) + 0.1 * torch.randn_like(parameter))
    return model


def make_batch(size, name, task):
    """Rows of different lengths; padding is token 0, as in both models, and no word is."""
    s = SIZES[size]
    generator = torch.Generator().manual_seed(3)
    samples, tokens = len(s["lengths"]), max(s["lengths"])

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    mask = (torch.arange(tokens) < torch.tensor(s["lengths"])[:, None]).long()
    batch = {"input_ids": draw(1, s["vocab"], samples, tokens) * mask, "mask": mask}
    if name == "bert":
        batch["token_types"] = draw(0, 3, samples, tokens) * mask
    if task == "classify":
        batch["labels"] = draw(0, s["labels"], samples)
    else:
        words = draw(1, s["vocab"], samples, tokens)
        masked = (draw(0, 10, samples, tokens) < 3) & (mask == 1)
        masked[:, 0] = True
        batch["labels"] = torch.where(masked, words, -100)
    return batch


class EncoderReference(Reference):
    def loss(self):
        batch = self.batch
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["mask"]}
        if "token_types" in batch:
            inputs["token_type_ids"] = batch["token_types"]
        logits = self.model(**inputs).logits
        labels = batch["labels"]
        return F.cross_entropy(logits.flatten(0, labels.dim() - 1), labels.flatten(), ignore_index=-100), logits


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def case(request, tmp_path_factory):
    return Case(make_model(*request.param), 1, 1, tmp_path_factory.mktemp("case"), make_batch(*request.param),
                EncoderReference)


def at_words(case, logits):
    """Logits of padding mean nothing, and differ: transformers lets padding attend to words."""
    return logits if logits.dim() == 2 else logits[case.batch["mask"] == 1]


def test_loss_and_logits_in_fp64(case, oracle):
    loss, logits, _ = case.reference("fp64").first_step()
    ours = case.echelon(oracle, "fp64")
    assert abs(ours["loss"].item() - loss.item()) < 1e-10
    assert (at_words(case, ours["logits"]) - at_words(case, logits)).abs().max().item() < 1e-10


def test_every_gradient_in_fp64(case, oracle):
    _, _, grads = case.reference("fp64").first_step()
    # Adding a constant to all scores of a query changes nothing, so biases of keys have no gradient.
    without = {name for name, g in grads.items() if g.norm() < 1e-12}
    assert all(name.endswith(("key.bias", "k_lin.bias")) for name in without), without
    assert all(g.norm() > 1e-4 for name, g in grads.items() if name not in without), "a gradient is next to nothing"
    assert_all_close(part(case.echelon(oracle, "fp64"), "grad/"), grads, lambda g: max(1e-10 * g.norm().item(), 1e-14))


def test_parameters_after_ten_adamw_steps_in_fp64(case, oracle):
    losses, values = case.reference("fp64").train()
    ours = case.echelon(oracle, "fp64")
    assert (ours["losses"] - losses).abs().max().item() < 1e-10
    # Of a gradient that is nothing but rounding, AdamW makes steps in any direction.
    meaningful = [name for name in values if not name.endswith(("key.bias", "k_lin.bias"))]
    ours = part(ours, "value/")
    assert_all_close({name: ours[name] for name in meaningful}, {name: values[name] for name in meaningful},
                     lambda _: 1e-10)


def test_loss_and_every_gradient_in_fp32(case, oracle):
    loss, logits, grads = case.reference("fp32").first_step()
    ours = case.echelon(oracle, "fp32")
    assert abs(ours["loss"].item() - loss.item()) < 1e-5 * loss.item()
    assert (at_words(case, ours["logits"]) - at_words(case, logits)).norm() < 1e-5 * at_words(case, logits).norm()
    assert_all_close(part(ours, "grad/"), grads, lambda g: max(1e-5 * g.norm().item(), 1e-7))


@pytest.mark.parametrize("pieces", [2, 3])
def test_micro_batches_give_the_gradients_of_the_whole_batch(case, oracle, pieces):
    whole, cut = case.echelon(oracle, "fp64"), case.echelon(oracle, "fp64", f"micro_batches={pieces}")
    assert abs(whole["loss"].item() - cut["loss"].item()) < 1e-12
    assert_all_close(part(cut, "grad/"), part(whole, "grad/"), lambda g: max(1e-12 * g.norm().item(), 1e-14))
    assert_all_close(part(cut, "value/"), part(whole, "value/"), lambda _: 1e-10)


def packed(batch, rows):
    """The documents of the rows of a padded batch, as rows that hold several; `rows` lists them."""
    lengths = batch["mask"].sum(1).tolist()
    tokens = max(sum(lengths[i] for i in row) for row in rows)
    shape = (len(rows), tokens)
    out = {name: torch.zeros(shape, dtype=torch.long) for name in (*batch, "positions")}
    out["labels"] -= 100
    for r, row in enumerate(rows):
        at = 0
        for number, i in enumerate(row):
            here = slice(at, at + lengths[i])
            for name in batch:
                out[name][r, here] = batch[name][i, : lengths[i]]
            out["mask"][r, here] = number + 1
            out["positions"][r, here] = torch.arange(lengths[i])
            at += lengths[i]
    return out


def causal_model(name):
    if name == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_embd=48, n_head=4, vocab_size=97, n_positions=64)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(num_hidden_layers=2, hidden_size=48, num_attention_heads=4,
                                          num_key_value_heads=2, intermediate_size=80, vocab_size=97,
                                          max_position_embeddings=64)
        model = transformers.LlamaForCausalLM(config)
    return model.double()


@pytest.mark.parametrize("precision, bound", [("fp64", 1e-12), ("fp32", 1e-5)])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "distilbert"])
def test_packed_documents_give_what_separate_rows_give(oracle, tmp_path, name, precision, bound):
    torch.manual_seed(5)
    causal = name in ("gpt2", "llama")
    model = causal_model(name) if causal else make_model("small", name, "mlm")
    model.save_pretrained(tmp_path / "weights")
    batch = make_batch("small", name, "mlm")
    if causal:  # an answer: only some of the next tokens are targets
        words = batch["input_ids"]
        following = torch.cat([words[:, 1:], torch.zeros_like(words[:, :1])], 1)
        batch["labels"] = torch.where((following > 0) & (batch["labels"] != -100), following, -100)
        batch["labels"][batch["mask"].sum(1) == 1, 0] = 7
    rows = [(0, 3), (1, 2)]
    results = []
    for kind, one in ("separate", batch), ("packed", packed(batch, rows)):
        save_file(one, tmp_path / f"{kind}.safetensors")
        results.append(oracle(tmp_path / "weights", tmp_path / f"{kind}.safetensors", precision, 0,
                              tmp_path / f"{kind}-out.safetensors"))
    separate, together = results
    assert abs(separate["loss"].item() - together["loss"].item()) < bound
    assert_all_close(part(together, "grad/"), part(separate, "grad/"), lambda g: max(bound * g.norm().item(), bound))
    # In separate rows these come one after another too.
    words = [separate["logits"][i][batch["mask"][i] == 1] for row in rows for i in row]
    ours = together["logits"][packed(batch, rows)["mask"] > 0]
    assert (ours - torch.cat(words)).abs().max() < bound * 10
