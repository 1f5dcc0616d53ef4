"""Hugging Face's Qwen3-VL with the kernels in it: the same tokens, and what it was afterwards."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from conftest import TINY, runs  # noqa: E402
from PIL import Image  # noqa: E402

import pascaline.torch as pt  # noqa: E402
from pascaline.transformers import is_patched, patch, unpatch  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(scope="module")
def processor():
    return transformers.AutoProcessor.from_pretrained(TINY)


def load(device):
    model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(TINY, dtype=torch.float32)
    return model.to(device).eval()


def inputs(processor, run, device):
    images = [Image.open(TINY / image).convert("RGB") for image in run["images"]]
    content = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": run["question"]}]
    messages = [{"role": "user", "content": content}]
    prepared = processor.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    return prepared.to(device)


def generated(model, given, count):
    tokens = model.generate(**given, max_new_tokens=count, do_sample=False)
    return tokens[0, given["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("run", runs()[:4], ids=lambda run: run["name"])
def test_ids_are_those_of_transformers(processor, device, run):
    model = load(device)
    given = inputs(processor, run, device)
    count = len(run["generated_ids"])
    before = generated(model, given, count)
    with torch.no_grad():
        logits = model(**given).logits
    counts = patch(model)
    assert all(counts.values()), f"each kind was found: {counts}"
    pt.reset_report()
    assert generated(model, given, count) == before
    with torch.no_grad():
        torch.testing.assert_close(model(**given).logits, logits, rtol=1e-4, atol=1e-4)
    report = pt.report()
    for op in ("linear", "rms_norm", "attention", "swiglu", "layer_norm"):
        if op != "layer_norm" or run["images"]:
            assert report[op]["kernels"] > 0 and report[op]["torch"] == {}, f"{op}: {report[op]}"
    assert before == run["generated_ids"][: len(before)]


def test_unpatch_restores_everything(processor):
    model = load("cpu")
    given = inputs(processor, runs()[1], "cpu")
    implementation = model.config._attn_implementation
    with torch.no_grad():
        before = model(**given).logits
        patch(model)
        assert is_patched(model) and model.config._attn_implementation == "pascaline"
        with pytest.raises(ValueError, match="already"):
            patch(model)
        unpatch(model)
        assert not is_patched(model)
        with pytest.raises(ValueError, match="not patched"):
            unpatch(model)
        pt.reset_report()
        assert torch.equal(model(**given).logits, before)
    assert pt.report() == {}
    assert model.config._attn_implementation == implementation
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_only_what_was_asked_for_is_patched():
    model = load("cpu")
    counts = patch(model, kinds=["rms_norm"])
    assert counts["rms_norm"] > 0 and counts["linear"] == counts["attention"] == 0
    unpatch(model)
    with pytest.raises(ValueError, match="unknown kinds"):
        patch(model, kinds=["convolution"])


def test_a_norm_that_computes_something_else_is_left_alone():
    class GemmaRMSNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.full((8,), 0.5)), 1e-6

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)

    assert patch(torch.nn.Sequential(GemmaRMSNorm()), kinds=["rms_norm"])["rms_norm"] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_models_without_transformers_interface(device):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

        def forward(self, x):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 32).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model, x = Attention().to(device), torch.randn(2, 7, 64, device=device)
    with torch.no_grad():
        before = model(x)
        assert patch(model) == {"linear": 2, "rms_norm": 0, "layer_norm": 0, "swiglu": 0, "attention": 1}
        pt.reset_report()
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
        assert pt.report()["attention"] == {"kernels": 1, "torch": {}}
        unpatch(model)
        assert torch.equal(model(x), before)


def test_gradients_flow_through_a_patched_model(processor):
    model = load("cpu")
    given = inputs(processor, runs()[0], "cpu")
    given["labels"] = given["input_ids"]

    def gradients():
        model.zero_grad()
        model(**given).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    before = gradients()
    patch(model)
    after = gradients()
    assert after.keys() == before.keys()
    for name, gradient in before.items():
        scale = gradient.abs().max().clamp(min=1e-6)
        assert (after[name] - gradient).abs().max() <= 1e-3 * scale, name


def test_attention_weights_are_transformers(processor):
    """The values that the notebook plots."""
    import pascaline

    run = runs()[3]
    images = [TINY / image for image in run["images"]]
    model = load("cpu")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs(processor, run, "cpu"), output_attentions=True).attentions
    ours = pascaline.Qwen3VL.load(TINY, device="cpu", dtype="f32")
    for layer, weights in enumerate(expected):
        found = torch.from_numpy(pascaline.attention_weights(ours, run["question"], images, layer=layer))
        torch.testing.assert_close(found, weights[0], rtol=1e-3, atol=1e-5)
