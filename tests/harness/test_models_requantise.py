import struct

import numpy as np
import pytest

from harness.model import ModelRefused
from harness.models.requantise import requantised, to_q8_0


def q4_1(weights: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Blocks of 32 weights as Q4_1, and the weights that these blocks stand for; written from ggml's description."""
    blocks, values = [], []
    for block in weights.reshape(-1, 32):
        least = np.float16(block.min())
        scale = np.float16((block.max() - block.min()) / 15)
        whole = np.rint((block - np.float32(least)) / (np.float32(scale) or 1)).clip(0, 15).astype(np.uint8)
        blocks.append(scale.tobytes() + least.tobytes() + (whole[:16] | whole[16:] << 4).tobytes())
        values.append(whole * np.float32(scale) + np.float32(least))
    return b"".join(blocks), np.concatenate(values)


def read_q8_0(data: bytes) -> np.ndarray:
    blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("whole", "i1", 32)]))
    return (blocks["scale"].astype(np.float32)[:, None] * blocks["whole"]).ravel()


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(path, alignment: int = 32):
    """A file of one of each: strings, arrays, a number; a Q4_1, an F32 and a Q8_0 tensor."""
    rng = np.random.default_rng(1)
    small, values = q4_1(rng.normal(size=96).astype(np.float32))
    plain, eight = rng.normal(size=5).astype(np.float32).tobytes(), bytes(range(68))
    pairs = [
        string("general.alignment") + struct.pack("<II", 4, alignment),
        string("name") + struct.pack("<I", 8) + string("tiny"),
        string("words") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("bc"),
        string("numbers") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, 3, len(pairs)) + b"".join(pairs)
    infos, data = b"", b""
    for name, shape, kind, content in (("w", (32, 3), 3, small), ("n", (5,), 0, plain), ("e", (32, 2), 8, eight)):
        data += bytes(-len(data) % alignment)
        infos += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += content
    path.write_bytes(head + infos + bytes(-len(head + infos) % alignment) + data)
    return head, values, plain, eight


def test_the_weights_stay_the_same_within_a_250th_of_the_largest():
    data, values = q4_1(np.random.default_rng(0).normal(size=32 * 50).astype(np.float32))
    again = read_q8_0(requantised(data))
    error = np.abs(again - values).reshape(-1, 32).max(axis=1)
    assert (error <= np.abs(values).reshape(-1, 32).max(axis=1) / 250).all()


def test_a_block_of_zeros_stays_zero():
    assert requantised(bytes(20)) == bytes(34)


@pytest.mark.parametrize("alignment", [32, 64])
def test_a_file_keeps_its_metadata_and_other_tensors_byte_by_byte(tmp_path, alignment):
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    head, values, plain, eight = gguf(source, alignment)
    to_q8_0(source, target)
    written = target.read_bytes()
    assert written.startswith(head)
    place, tensors = len(head), {}
    for _ in range(3):
        (length,) = struct.unpack_from("<Q", written, place)
        name = written[place + 8 : place + 8 + length].decode()
        (dimensions,) = struct.unpack_from("<I", written, place + 8 + length)
        *_, kind, offset = struct.unpack_from(f"<{dimensions}QIQ", written, place + 12 + length)
        tensors[name] = (kind, offset)
        place += 12 + length + dimensions * 8 + 12
    base = -(-place // alignment) * alignment
    assert [kind for kind, _ in tensors.values()] == [8, 0, 8]
    assert all(offset % alignment == 0 for _, offset in tensors.values())
    at = {name: base + offset for name, (_, offset) in tensors.items()}
    assert np.allclose(read_q8_0(written[at["w"] : at["w"] + 102]), values, atol=np.abs(values).max() / 250)
    assert written[at["n"] : at["n"] + 20] == plain
    assert written[at["e"] : at["e"] + 68] == eight
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.gguf", "b.gguf"]


def test_another_kind_of_file_is_refused_and_nothing_is_written(tmp_path):
    source = tmp_path / "a.gguf"
    source.write_bytes(b"GGUF" + struct.pack("<IQQ", 2, 0, 0))
    with pytest.raises(ModelRefused, match="version 3"):
        to_q8_0(source, tmp_path / "b.gguf")
    assert not (tmp_path / "b.gguf").exists()
