"""Checks and measurements on a GPU: run on a machine with torch and the wheel, ``python python/tests/gpu.py``. Needs no pytest.

DLPack without a copy, a patched model's tokens, each op's time against torch's eager float32, and the overhead of a call. Prints a
line for each and a summary as JSON; ends with 1 if a check fails.
"""

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import pascaline
import pascaline.torch as pt

ROOT = Path(__file__).resolve().parents[2]
TINY = Path(os.environ.get("PASCALINE_TINY", ROOT / "tests" / "fixtures" / "qwen3-vl" / "tiny"))
GOAL_RATIO, GOAL_OVERHEAD = 1.2, 10.0

failures = []
report = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}


def check(name, holds, detail=""):
    print(f"{'ok  ' if holds else 'FAIL'} {name} {detail}")
    if not holds:
        failures.append(name)


def dlpack():
    for dtype in (torch.float32, torch.float16):
        x = torch.randn(64, 96, device="cuda", dtype=dtype)
        ours = pascaline.from_dlpack(x.t())
        back = torch.from_dlpack(ours)
        name = str(dtype)
        check(f"dlpack {name}: pointers", x.data_ptr() == ours.data_ptr() == back.data_ptr(), hex(x.data_ptr()))
        check(f"dlpack {name}: strides and values", back.stride() == x.t().stride() and torch.equal(back, x.t()))
        soft = torch.from_dlpack(pascaline.softmax(pascaline.from_dlpack(x)))
        error = (soft.float() - F.softmax(x.float(), -1)).abs().max().item()
        check(f"dlpack {name}: softmax on the package's stream", error < 1e-3, f"{error:.1e}")
    # the order of streams: a long kernel, then a tensor of its result on another stream, again and again
    side = torch.cuda.Stream()
    wrong = 0
    for i in range(50):
        with torch.cuda.stream(side):
            a = torch.full((2048, 2048), 1.0 + i, device="cuda")
            b = a @ a
            s = torch.from_dlpack(pascaline.sum(pascaline.from_dlpack(b)))
            wrong += int((s != 2048.0 * 2048.0 * (1.0 + i) ** 2).sum())
            del a, b, s
    torch.cuda.synchronize()
    check("dlpack: order between streams", wrong == 0, f"{wrong} wrong")


def microseconds(run, count, repeats=7):
    """Of a call on the host: the median over repeats, work on the GPU being short."""
    for _ in range(count // 4 + 1):
        run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - start) / count * 1e6)
        torch.cuda.synchronize()
    return statistics.median(times)


def on_device(run, repeats=30):
    """Of the GPU's work, by events: the median, with a queue that hides the host."""
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    pairs = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(repeats)]
    torch.cuda._sleep(20_000_000)
    for start, end in pairs:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e3


def rms_norm(x, weight, eps):
    """As Hugging Face's models compute it."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def cases():
    """(name, with the kernels, torch's eager float32): the shapes of a prompt and of a token of the 2B model."""
    def r(*shape, dtype=torch.float32):
        return torch.randn(*shape, device="cuda").to(dtype)

    for rows in (1, 1024):
        x, weight, bias = r(rows, 2048), r(2048), r(2048)
        wide, norm = r(rows, 4096), r(128)
        yield f"softmax [{16 * rows}, 1024]", *pair(pt.softmax, F.softmax, (r(16 * rows, 1024),), (-1,))
        yield f"rms_norm [{rows}, 2048]", *pair(pt.rms_norm, rms_norm, (x, weight, 1e-6))
        heads = r(rows * 16, 128)
        yield f"rms_norm [{rows * 16}, 128]", *pair(pt.rms_norm, rms_norm, (heads, norm, 1e-6))
        yield (
            f"layer_norm [{rows}, 2048]",
            lambda x=x, w=weight, b=bias: pt.layer_norm(x, w, b, 1e-6),
            lambda x=x, w=weight, b=bias: F.layer_norm(x, (2048,), w, b, 1e-6),
        )
        gate, up = r(rows, 6144), r(rows, 6144)
        yield (
            f"swiglu [{rows}, 6144]",
            lambda g=gate, u=up: pt.swiglu(g, u),
            lambda g=gate, u=up: F.silu(g) * u,
        )
        q, angles = r(rows, 16, 128), r(rows, 64)
        cos, sin = angles.cos(), angles.sin()
        yield (
            f"rope [{rows}, 16, 128]",
            lambda q=q, c=cos, s=sin: pt.rope(q, c, s),
            lambda q=q, c=cos[:, None], s=sin[:, None]: rotate(q, c, s),
        )
        for n, k in ((2048, 2048), (6144, 2048), (2048, 6144)):
            x, w = r(rows, k), r(n, k) / math.sqrt(k)
            yield f"linear f32 [{rows}, {k}]x[{n}]", *pair(pt.linear, F.linear, (x, w))
            half = w.half()
            yield (
                f"linear f16 weights [{rows}, {k}]x[{n}]",
                lambda x=x, w=half: pt.linear(x, w),
                lambda x=x, w=w: F.linear(x, w),
            )
            dense = torch.nn.Linear(k, n, bias=False, device="cuda")
            for form in ("q8_0", "q4_0", "q4_k"):
                quantised = pt.QuantLinear.of(dense, form)
                yield (
                    f"linear {form} [{rows}, {k}]x[{n}]",
                    lambda x=x, m=quantised: m(x),
                    lambda x=x, w=dense.weight: F.linear(x, w),
                )
        q = r(1, 16, rows, 128)
        k, v = r(1, 8, 1024, 128), r(1, 8, 1024, 128)
        causal = rows > 1
        yield (
            f"attention 16/8 heads, {rows} queries, 1024 keys",
            lambda q=q, k=k, v=v, c=causal: pt.attention(q, k, v, causal=c),
            lambda q=q, k=k, v=v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c, enable_gqa=True),
        )


def pair(ours, theirs, arguments, more=()):
    return lambda: ours(*arguments), lambda: theirs(*arguments, *more)


def ratios():
    torch.backends.cuda.matmul.allow_tf32 = False
    pt.reset_report()
    rows, logs = [], []
    with torch.no_grad():
        for name, ours, theirs in cases():
            a, b = ours(), theirs()
            error = ((a - b).norm() / b.norm()).item()
            mine, torchs = on_device(ours), on_device(theirs)
            ratio = torchs / mine
            rows.append({"case": name, "us": mine, "torch_us": torchs, "ratio": ratio, "error": error})
            logs.append(math.log(ratio))
            print(f"     {name:45} {mine:9.1f} us  torch {torchs:9.1f} us  {ratio:5.2f} x  error {error:.1e}")
    fallen = {op: counts["torch"] for op, counts in pt.report().items() if counts["torch"]}
    check("no case fell back", not fallen, str(fallen))
    exact = [row for row in rows if not any(form in row["case"] for form in ("q8_0", "q4_0", "q4_k", "f16"))]
    check("results", all(row["error"] < 1e-5 for row in exact))
    mean = math.exp(statistics.fmean(logs))
    report["ratios"], report["ratio_geometric_mean"] = rows, mean
    plain = [math.log(row["ratio"]) for row in exact]
    report["ratio_geometric_mean_float32_alone"] = math.exp(statistics.fmean(plain))
    print(f"     float32 alone: {report['ratio_geometric_mean_float32_alone']:.2f} x")
    check(f"ratio to torch's eager float32, geometric mean >= {GOAL_RATIO}", mean >= GOAL_RATIO, f"{mean:.2f} x")


def overhead():
    """Host time of a call with next to no work, against torch's own call."""
    x, w, m = torch.randn(4, 64, device="cuda"), torch.randn(64, device="cuda"), torch.randn(64, 64, device="cuda")
    q = torch.randn(1, 2, 4, 64, device="cuda")
    calls = {
        "softmax": (lambda: pt.softmax(x), lambda: F.softmax(x, -1)),
        "layer_norm": (lambda: pt.layer_norm(x, w, w, 1e-5), lambda: F.layer_norm(x, (64,), w, w, 1e-5)),
        "linear": (lambda: pt.linear(x, m), lambda: F.linear(x, m)),
        "swiglu": (lambda: pt.swiglu(x, x), lambda: F.silu(x) * x),
        "attention": (lambda: pt.attention(q, q, q), lambda: F.scaled_dot_product_attention(q, q, q)),
        "rms_norm": (lambda: pt.rms_norm(x, w, 1e-6), lambda: F.rms_norm(x, (64,), w, 1e-6)),
    }
    report["overhead_us"] = {}
    with torch.no_grad():
        for name, (ours, theirs) in calls.items():
            mine, torchs = microseconds(ours, 500), microseconds(theirs, 500)
            report["overhead_us"][name] = {"call": mine, "torch": torchs, "more": mine - torchs}
            detail = f"{mine:.1f} us, torch {torchs:.1f} us, {mine - torchs:+.1f} us"
            check(f"overhead of {name} <= {GOAL_OVERHEAD} us more", mine - torchs <= GOAL_OVERHEAD, detail)


def patched():
    import transformers
    from PIL import Image

    from pascaline.transformers import patch

    runs = json.loads((TINY / "cases.json").read_text())["runs"]
    processor = transformers.AutoProcessor.from_pretrained(TINY)
    model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(TINY, dtype=torch.float32).cuda().eval()

    def prepared(run):
        images = [Image.open(TINY / image).convert("RGB") for image in run["images"]]
        content = [{"type": "image", "image": image} for image in images]
        content.append({"type": "text", "text": run["question"]})
        return processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        ).to("cuda")

    def generated(run):
        given = prepared(run)
        tokens = model.generate(**given, max_new_tokens=len(run["generated_ids"]), do_sample=False)
        return tokens[0, given["input_ids"].shape[1] :].tolist()

    before = [generated(run) for run in runs]
    print("     patched:", patch(model))
    pt.reset_report()
    for run, ids in zip(runs, before):
        found = generated(run)
        check(f"patched model: {run['name']}", found == ids, "" if found == ids else f"{found} and not {ids}")
    fallen = {op: counts["torch"] for op, counts in pt.report().items() if counts["torch"]}
    check("patched model: on the kernels alone", not fallen, str(fallen))
    report["patched"] = pt.report()


def generation():
    runs = json.loads((TINY / "cases.json").read_text())["runs"]
    model = pascaline.Qwen3VL.load(TINY, device="cuda:0", dtype="f32")
    for run in runs:
        images = [TINY / image for image in run["images"]]
        output = model.generate(run["question"], images, max_new_tokens=len(run["generated_ids"]), greedy=True)
        check(f"Qwen3VL on cuda:0: {run['name']}", output.ids == run["generated_ids"])


def pool():
    device = pascaline.Device("cuda:0")
    for _ in range(1000):
        pascaline.softmax(pascaline.from_dlpack(torch.randn(64, 64, device="cuda")))
    device.synchronize()
    live = device.memory_statistics()["live"]
    check("pool: nothing is left", live < 1 << 20, f"{live} bytes live")


PARTS = {f.__name__: f for f in (dlpack, pool, generation, patched, overhead, ratios)}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        print(f"== {part}")
        PARTS[part]()
    report["failures"] = failures
    path = os.environ.get("OUT")
    text = json.dumps(report, indent=1)
    if path:
        (Path(path) / "python_gpu.json").write_text(text)
    else:
        print(text)
    print("failed: " + ", ".join(failures) if failures else "all checks hold")
    sys.exit(bool(failures))
