// The certificate: every strategy trains a tiny model and is compared with one process, its bytes
// with the closed form, its memory with the closed form, and the bubble of its pipeline, by the
// order in which ranks really ran, with the closed form. In bf16 and fp16 the losses are compared,
// and owners' updates to the bit (docs/verify.md).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/verify/run.h"

namespace echelon {

struct VerifyCell {
  std::string name;  // "data parallel, ring, a bucket a layer"
  int world = 1;
  std::string mesh = {};  // "2x2x1": pipeline x data x tensor
  // From one process: of any parameter; in bf16 and fp16 of any step's loss, or of any master and
  // moment given the same gradients.
  double max_abs_diff = 0;
  double bound = 0;         // that it must keep
  bool bytes_ok = false;    // what all ranks sent is the closed form's
  bool memory_ok = false;   // so are the bytes of parameters, gradients and optimiser state
  bool bubble_ok = true;    // so is the order of the pipeline's slots
  std::string bubble = {};  // idle over ideal time, "3/8"; empty: no pipeline
  std::vector<std::string> notes = {};  // what does not hold, a line each
  double seconds = 0;                   // that it took, on all ranks together

  bool ok() const { return max_abs_diff <= bound && bytes_ok && memory_ok && bubble_ok; }
};

struct VerifyOptions {
  bool quick = false;            // some cells, among which every value of every option is
  const Fault* fault = nullptr;  // put into the ranks' runs: only cells that it concerns
};

// All cells for the world of these ranks, of which each calls it; rank 0 gets the cells. `show` is
// called with each as it is there.
std::vector<VerifyCell> verify_cells(std::shared_ptr<Communicator> ranks, const Meeting& meeting,
                                     const VerifyOptions& options,
                                     const std::function<void(const VerifyCell&)>& show);

}  // namespace echelon
