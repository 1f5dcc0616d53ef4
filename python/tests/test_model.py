"""Qwen3-VL: the reference's tokens, streams, pictures in every form, interruption, errors; fit, doctor and pipeline."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from conftest import TINY, runs
from PIL import Image

import pascaline
from pascaline import Qwen3VL

RUNS = {run["name"]: run for run in runs()}


@pytest.fixture(scope="module")
def models():
    loaded = {}

    def load(device):
        if device not in loaded:
            loaded[device] = Qwen3VL.load(TINY, device=device, dtype="f32")
        return loaded[device]

    return load


@pytest.fixture
def model(models):
    return models("cpu")


@pytest.mark.parametrize("name", RUNS)
def test_ids_are_the_references(models, device, name):
    if device == "virtual" and name == "large_image":
        device = "cpu"  # 20 s for the virtual GPU; `cargo test` has it
    run, model = RUNS[name], models(device)
    images = [TINY / image for image in run["images"]]
    pieces = []
    output = model.generate(
        run["question"], images, max_new_tokens=len(run["generated_ids"]), greedy=True, on_text=pieces.append
    )
    assert output.ids == run["generated_ids"]
    assert output.text == run["generated_text"] == "".join(pieces) == model.decode(output.ids)
    assert output.statistics.prompt_tokens == run["n_tokens"] == len(model.tokenize(run["question"], images))
    assert output.statistics.decode_tokens == len(output.ids) - 1
    assert output.statistics.as_dict()["time_to_first_token"] > 0
    assert output.stop_reason in ("max_new_tokens", "eos")


def test_streams_give_the_same(models, device):
    run = RUNS["text"]
    stream = models(device).stream(run["question"], max_new_tokens=24)
    assert stream.output is None
    assert "".join(stream) == run["generated_text"]
    assert stream.output.ids == run["generated_ids"]
    assert next(stream, None) is None


def test_pictures_in_every_form(model):
    run = RUNS["one_image"]
    path = TINY / run["images"][0]
    image = Image.open(path)
    array = np.asarray(image.convert("RGB"))
    alpha = np.dstack([array, np.full(array.shape[:2], 7, np.uint8)])
    for form in (str(path), path, path.read_bytes(), image, array, alpha, [array], (path,), np.asfortranarray(array)):
        assert model.generate(run["question"], form, max_new_tokens=24).ids == run["generated_ids"], type(form)
    grey = array[..., 0]
    same = np.repeat(grey[..., None], 3, 2)
    assert model.generate("?", grey, max_new_tokens=4).ids == model.generate("?", same, max_new_tokens=4).ids


def test_messages_as_hugging_face_has_them(model):
    run = RUNS["two_images"]
    images = [Image.open(TINY / image) for image in run["images"]]
    content = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": run["question"]}]
    messages = [{"role": "user", "content": content}]
    assert model.generate(messages, max_new_tokens=24).ids == run["generated_ids"]
    placeholders = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": run["question"]}]
    assert model.generate([{"role": "user", "content": placeholders}], images, max_new_tokens=24).ids == run["generated_ids"]
    with pytest.raises(pascaline.PromptError):
        model.generate([{"role": "user", "content": placeholders}], images[:1])
    with pytest.raises(pascaline.PromptError):
        model.generate([{"role": "user", "content": [{"type": "sound"}]}])
    with pytest.raises(pascaline.PromptError):
        model.generate([{"content": "no role"}])
    text = [{"role": "user", "content": RUNS["text"]["question"]}]
    assert model.generate(text, max_new_tokens=24).ids == RUNS["text"]["generated_ids"]


def test_videos(model, tmp_path):
    frames = [np.full((64, 64, 3), 40 * i, np.uint8) for i in range(4)]
    given = model.generate("What moves?", videos=[(frames, 2.0)], max_new_tokens=4)
    for i, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"{i}.png")
    assert model.generate("What moves?", videos=[(tmp_path, 2.0)], max_new_tokens=4).ids == given.ids
    with pytest.raises(pascaline.ImageError):
        model.generate("?", videos=[(frames, 0.0)])
    with pytest.raises(pascaline.UnsupportedError):
        model.generate("?", videos=[frames])


@pytest.mark.parametrize("image", ["/nowhere.png", np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 2), np.uint8),
                                   np.zeros(5, np.uint8), b"no picture", np.zeros((2, 900, 3), np.uint8)])
def test_pictures_that_cannot_be_used(model, image):
    with pytest.raises(pascaline.ImageError):
        model.generate("?", [image], max_new_tokens=1)


def test_sampling(model):
    def ids(**options):
        return model.generate("Hello", max_new_tokens=12, **options).ids

    assert ids() == ids(greedy=True) == ids(temperature=0.0)
    assert ids(greedy=False, seed=1) == ids(temperature=0.7, top_k=20, top_p=0.8, presence_penalty=1.5, seed=1)
    assert ids(temperature=5.0, top_k=0, top_p=1.0, seed=1) != ids(temperature=5.0, top_k=0, top_p=1.0, seed=2)
    with pytest.raises(pascaline.UnsupportedError, match="greedy"):
        ids(greedy=True, top_k=5)
    with pytest.raises(pascaline.UnsupportedError):
        ids(temperature=-1.0)


def test_stop_strings(model):
    whole = model.generate("Hello", max_new_tokens=20)
    stop = whole.text[3:5]
    output = model.generate("Hello", max_new_tokens=20, stop=[stop])
    assert output.stop_reason == "stop_string" and output.text == whole.text[: whole.text.index(stop)]


def test_exceptions_in_callbacks_come_out(model):
    class Mine(Exception):
        pass

    seen = []

    def receive(piece):
        seen.append(piece)
        if len(seen) == 3:
            raise Mine("enough")

    with pytest.raises(Mine, match="enough"):
        model.generate("Hello", max_new_tokens=50, on_text=receive)
    assert len(seen) == 3, "it ended there"
    assert model.generate(RUNS["text"]["question"], max_new_tokens=24).ids == RUNS["text"]["generated_ids"]

    def progress(loaded, total):
        raise Mine(f"{loaded} of {total}")

    with pytest.raises(Mine):
        Qwen3VL.load(TINY, device="cpu", progress=progress)


def test_streams_can_be_left(model):
    before = threading.active_count()
    with model.stream("Hello", max_new_tokens=4000) as stream:
        assert next(stream)
    assert list(stream) == []
    for _ in range(20):
        next(model.stream("Hello", max_new_tokens=4000))
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.parametrize("way", ["generate", "stream"])
def test_ctrl_c(way):
    """In a process of its own, which is interrupted while it generates."""
    work = {
        "generate": "model.generate('Hello', max_new_tokens=4000, stop_at_eos=False, on_text=begun)",
        "stream": "[begun(piece) for piece in model.stream('Hello', max_new_tokens=4000, stop_at_eos=False)]",
    }
    code = f"""
        import pascaline, signal, sys
        # as in a terminal; what a shell runs in the background ignores Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
        model = pascaline.Qwen3VL.load({str(TINY)!r}, device="virtual")
        def begun(piece):
            print("begun", flush=True)
        try:
            {work[way]}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(0)
        sys.exit(3)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "begun"
    child.send_signal(signal.SIGINT)
    begin = time.monotonic()
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0 and output.strip().endswith("interrupted")
    assert time.monotonic() - begin < 10


def test_several_threads_share_a_model(model):
    expected, found = RUNS["text"]["generated_ids"], []

    def work():
        found.append(model.generate(RUNS["text"]["question"], max_new_tokens=24).ids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == [expected] * 4


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_k"])
def test_types_of_matrices(dtype):
    model = Qwen3VL.load(TINY, device="cpu", dtype=dtype, cache="f16")
    assert model.generate("Hello", max_new_tokens=5).ids
    assert model.weight_bytes < Qwen3VL.load(TINY, device="cpu", dtype="f32").weight_bytes


def test_loading_shows_and_refuses(model, tmp_path):
    seen = []
    Qwen3VL.load(str(TINY), device="cpu", progress=lambda loaded, total: seen.append((loaded, total)))
    assert seen and seen[-1][0] == seen[-1][1]
    for wrong in (tmp_path, tmp_path / "nowhere", TINY / "cases.json"):
        with pytest.raises(pascaline.CheckpointError):
            Qwen3VL.load(wrong, device="cpu")
    shutil.copytree(TINY, tmp_path / "broken", ignore=shutil.ignore_patterns("cases*"))
    weights = tmp_path / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(pascaline.CheckpointError) as raised:
        Qwen3VL.load(tmp_path / "broken", device="cpu")
    assert raised.value.file.endswith("model.safetensors")
    for options in ({"dtype": "q9_k"}, {"cache": "q4"}, {"vision": "moon"}, {"gpu_layers": 1}):
        with pytest.raises(pascaline.UnsupportedError):
            Qwen3VL.load(TINY, device="cpu", **options)
    with pytest.raises(TypeError):
        model.generate(5)
    with pytest.raises(pascaline.PromptError):
        model.generate("x" * 100_000, max_new_tokens=1)


def test_what_is_computed_can_be_looked_at(model):
    run = RUNS["one_image"]
    trace = model.trace(run["question"], [TINY / run["images"][0]])
    config, tokens = model.config, run["n_tokens"]
    assert len(trace["ids"]) == len(trace["positions"]) == tokens
    assert [h.shape for h in trace["hidden"]] == [(tokens, config["hidden_size"])] * (config["num_hidden_layers"] + 1)
    assert trace["logits"].shape == (tokens, config["vocab_size"])
    assert int(trace["logits"].numpy()[-1].argmax()) == run["generated_ids"][0]
    (_, rows, columns), side = trace["grids"][0], config["spatial_merge_size"]
    assert trace["ids"].count(config["image_token_id"]) == rows * columns // side**2 == len(trace["embeddings"][0])


def test_attention_over_a_picture(model):
    run = RUNS["one_image"]
    path = TINY / run["images"][0]
    for layer in range(model.config["num_hidden_layers"]):
        weights = pascaline.attention_weights(model, run["question"], [path], layer=layer)
        heads, tokens = model.config["num_attention_heads"], run["n_tokens"]
        assert weights.shape == (heads, tokens, tokens)
        np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
        assert (np.triu(weights, 1) == 0).all()
    maps = pascaline.attention_map(model, run["question"], [path])
    _, rows, columns = model.trace(run["question"], [path])["grids"][0]
    assert [m.shape for m in maps] == [(rows // 2, columns // 2)] and (maps[0] >= 0).all() and maps[0].sum() <= 1.0
    with pytest.raises(ValueError):
        pascaline.attention_weights(model, "Hello", layer=9)


def test_fit_plans_for_cards_that_are_not_there(tiny):
    plan = pascaline.fit(tiny, card="gtx1060", context=512, image=(256, 256))
    assert plan["load"] == {"dtype": "f16", "cache": "f32", "gpu_layers": None, "vision": "gpu"}
    assert 0 < plan["peak"] <= plan["limit"] and plan["tokens_per_second"] > 0 and plan["layers"] == 3
    smaller = pascaline.fit(tiny, card="mx330", context=512, image=None, dtype="q8_0")
    assert smaller["load"]["dtype"] == "q8_0" and smaller["weights"] < plan["weights"]
    with pytest.raises(pascaline.UnsupportedError):
        pascaline.fit(tiny, card="gtx1060", memory_limit=1000)
    with pytest.raises(pascaline.UnsupportedError):
        pascaline.fit(tiny, card="rtx5090")
    with pytest.raises(pascaline.UnsupportedError):
        pascaline.fit(tiny, "cpu")
    plan = pascaline.fit(tiny, "virtual", context=512, image=(64, 64))
    model = Qwen3VL.load(tiny, device="virtual", **plan["load"])
    assert model.generate("Hello", max_new_tokens=2).ids


def test_doctor_says_what_there_is():
    code = "import pascaline, json; print(json.dumps(pascaline.doctor())); pascaline.Device('virtual')"
    environment = {**os.environ, "LD_LIBRARY_PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert '"pascaline": "' + pascaline.__version__ in done.stdout
    pascaline.Device("virtual")
    report = pascaline.doctor()
    assert report["backend"] == "virtual" and report["devices"][0]["compute_capability"] == (6, 1)


def test_quantised_files(tiny, tmp_path):
    files = pascaline.quantize_checkpoint(tiny, tmp_path / "gguf", "Q8_0")
    assert [file.name for file in files] == ["model-Q8_0.gguf", "mmproj-F16.gguf"]
    model = Qwen3VL.load(files[0], device="cpu")
    assert model.generate("Hello", max_new_tokens=3).ids
    with pytest.raises(FileExistsError):
        pascaline.quantize_checkpoint(tiny, tmp_path / "gguf", "Q8_0")
    with pytest.raises(pascaline.UnsupportedError):
        pascaline.quantize_checkpoint(tiny, tmp_path / "other", "Q3_K")


def test_pipeline(model, tiny):
    run = RUNS["one_image"]
    path = TINY / run["images"][0]
    pipe = pascaline.pipeline("image-text-to-text", model=str(tiny), device="cpu")
    (answer,) = pipe(images=path, text=run["question"], max_new_tokens=24)
    assert answer["generated_text"] == run["generated_text"] and answer["ids"] == run["generated_ids"]
    texts = [run["question"], RUNS["text"]["question"]]
    both = pascaline.pipeline(model=model)(images=[path, None], text=texts, max_new_tokens=24)
    assert [answer["ids"] for answer in both] == [run["generated_ids"], RUNS["text"]["generated_ids"]]
    with pytest.raises(ValueError):
        pascaline.pipeline("text-generation", model=model)


def test_models_do_not_leak(tiny):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def work(count):
        for _ in range(count):
            list(Qwen3VL.load(tiny, device="cpu").stream("Hello", max_new_tokens=2))
        gc.collect()

    work(3)
    before = resident()
    work(15)
    time.sleep(0.2)
    assert resident() - before < 8 << 20


def test_embeddings_and_relevance_are_the_references(models, device):
    model = models(device)
    reference = json.loads((TINY.parents[1] / "qwen3-vl-embed" / "tiny.json").read_text())
    for case in reference["embeddings"]:
        images = [TINY / name for name in case.get("images", [])]
        found = model.embed(case.get("text", ""), images, instruction=case.get("instruction"))
        np.testing.assert_allclose(found, case["embedding"], rtol=0, atol=1e-5)
    short = model.embed("x", dimensions=8)
    assert len(short) == 8 and abs(np.linalg.norm(short) - 1) < 1e-5
    with pytest.raises(pascaline.UnsupportedError):
        model.embed("x", dimensions=0)
    for case in reference["reranking"]:
        document = case["document"]
        images = [TINY / name for name in document.get("images", [])]
        found = model.relevance(case["query"]["text"], document.get("text", ""), images)
        assert abs(found - case["score"]) <= 1e-5


def test_pictures_keep_to_the_pixels_that_are_asked_for(model):
    picture = np.zeros((512, 512, 3), dtype=np.uint8)
    small = Qwen3VL.load(TINY, device="cpu", dtype="f32", max_pixels=128 * 128)
    assert len(model.tokenize("x", picture)) - len(small.tokenize("x", picture)) == 256 - 16
    with pytest.raises(pascaline.UnsupportedError):
        Qwen3VL.load(TINY, device="cpu", min_pixels=2, max_pixels=1)
    with pytest.raises(pascaline.UnsupportedError, match="share"):
        Qwen3VL.load(TINY, device="cpu", sparse_prefill=1.5)
