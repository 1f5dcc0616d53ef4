"""Not run: mypy checks that the stubs say this."""

from typing import List, Optional

import numpy as np

import pascaline

x: pascaline.Tensor = pascaline.Tensor(np.zeros((2, 3), np.float32), device="cpu")
y: pascaline.Tensor = pascaline.softmax(x)
shape: "tuple[int, ...]" = y.shape
on: pascaline.Device = y.device
array = y.numpy().sum()
w: pascaline.QuantTensor = pascaline.quantize(x, "q8_0")
model: pascaline.Qwen3VL = pascaline.Qwen3VL.load("model", device="auto", dtype="q4_k")
output: pascaline.Output = model.generate("What is this?", images=["a.jpg"], max_new_tokens=16, greedy=True)
ids: List[int] = output.ids
rate: float = output.statistics.decode_tokens_per_second
pieces: List[str] = [piece for piece in model.stream("Hello")]
peak: Optional[int] = output.statistics.peak_bytes
try:
    pascaline.add(x, y)
except pascaline.ShapeError as error:
    print(error.op)

pascaline.softmax(5, 6)  # type: ignore[call-arg]
pascaline.linear(x, y, activation="relu")  # type: ignore[arg-type]
model.generate(5)  # type: ignore[arg-type]
