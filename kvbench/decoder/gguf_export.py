"""The same model as a GGUF file in float32: what a peer decodes without quantising activations."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvbench.errors import UsageError


def export_f32(source: Path, target: Path) -> None:
    """Write ``target``: every field of ``source``, every tensor dequantised to float32."""
    import gguf
    from gguf.quants import dequantize

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    if target.exists():
        raise UsageError(f"{target} exists; choose another file")
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *inner = field.types
        value = int(gguf.LlamaFileType.ALL_F32) if name == "general.file_type" else field.contents()
        writer.add_key_value(name, value, kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
