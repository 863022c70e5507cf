// echelon._backend: the one function that torch.distributed calls to make a process group.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "python/backend.h"

namespace {

using echelon::python::EchelonBackend;

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int size, std::chrono::milliseconds timeout) {
  const pybind11::gil_scoped_release without_gil;
  return c10::make_intrusive<EchelonBackend>(store, rank, size, timeout);
}

}  // namespace

PYBIND11_MODULE(_backend, module) {
  module.doc() = "The backend \"echelon\" of torch.distributed; import echelon registers it.";
  module.attr("torch_version") = TORCH_VERSION;
  pybind11::class_<EchelonBackend, c10d::Backend, c10::intrusive_ptr<EchelonBackend>>(
      module, "EchelonBackend");
  module.def("create", &create, pybind11::arg("store"), pybind11::arg("rank"),
             pybind11::arg("size"), pybind11::arg("timeout"));
}
