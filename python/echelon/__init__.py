"""Echelon's collectives as a backend of torch.distributed, for CPU tensors.

    import echelon
    torch.distributed.init_process_group("echelon")
"""

import torch
import torch.distributed as dist

try:
    from echelon import _backend
except ImportError as error:
    raise ImportError(
        f"echelon._backend cannot be loaded into torch {torch.__version__} ({torch.__file__}): {error}. "
        "It works with the torch and the Python that it was built for: build it again with "
        "cmake -DECHELON_PYTHON=… set to this interpreter."
    ) from error

if _backend.torch_version.split("+")[0] != torch.__version__.split("+")[0]:
    raise ImportError(
        f"echelon was built for torch {_backend.torch_version}; this is torch {torch.__version__}. Build it again "
        "with cmake -DECHELON_PYTHON=… set to this interpreter."
    )


def _create(options, _backend_options):
    return _backend.create(options.store, options.group_rank, options.group_size, options.timeout)


if "echelon" not in dist.Backend.backend_list:
    dist.Backend.register_backend("echelon", _create, extended_api=True, devices=["cpu"])
