// The certificate: every strategy trains a tiny model and is compared with one process. Its bytes,
// its memory and the bubble of its pipeline, by the order in which ranks ran, are compared with
// closed forms. In bf16 and fp16 the losses are compared, and the updates of owners to the bit
// (docs/verify.md).
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
  // The largest difference from one process: of any parameter; in bf16 and fp16 of any step's loss,
  // or of any master and moment given the same gradients.
  double max_abs_diff = 0;
  double bound = 0;                     // of max_abs_diff
  bool bytes_ok = false;                // the bytes sent equal the closed form
  bool memory_ok = false;               // so do parameters, gradients and optimiser state
  bool bubble_ok = true;                // so does the bubble of the pipeline
  std::string bubble = {};              // idle over ideal time, "3/8"; empty: no pipeline
  std::vector<std::string> notes = {};  // the failed checks, one line each
  double seconds = 0;                   // that the cell took

  bool ok() const { return max_abs_diff <= bound && bytes_ok && memory_ok && bubble_ok; }
};

struct VerifyOptions {
  bool quick = false;            // fewer cells, which cover every value of every option
  const Fault* fault = nullptr;  // injected into the ranks' runs; only cells that it affects run
};

// Runs all cells for the world of these ranks. Collective; rank 0 gets the cells. Calls `show` with
// each finished cell.
std::vector<VerifyCell> verify_cells(std::shared_ptr<Communicator> ranks, const Meeting& meeting,
                                     const VerifyOptions& options,
                                     const std::function<void(const VerifyCell&)>& show);

}  // namespace echelon
