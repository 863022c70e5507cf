// The certificate: every strategy trains a tiny GPT in fp64 for five steps and is compared with one
// process, its bytes with the closed form, its memory with the closed form. In bf16 and fp16 the
// losses are compared, and owners' updates to the bit (docs/precision.md).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/net/token.h"

namespace echelon {

struct VerifyCell {
  std::string name;  // "data parallel, ring, a bucket a layer"
  int world = 1;
  // From one process: of any parameter; in bf16 and fp16 of any step's loss, or of any master and
  // moment given the same gradients.
  double max_abs_diff = 0;
  double bound = 0;        // that it must keep
  bool bytes_ok = false;   // what all ranks sent is the closed form's
  bool memory_ok = false;  // so are the bytes of parameters, gradients and optimiser state
  std::string note;        // what does not hold

  bool ok() const { return max_abs_diff <= bound && bytes_ok && memory_ok; }
};

// All cells for the world of these ranks; each rank calls it, and rank 0 gets the cells. `show` is
// called with each as it is there.
std::vector<VerifyCell> verify_cells(std::shared_ptr<Communicator> ranks, const std::string& bind,
                                     const Token& token,
                                     const std::function<void(const VerifyCell&)>& show);

// With machine, commit and versions: what --json writes. A world that did not come to its end
// counts as failed.
std::string certificate(const std::vector<VerifyCell>& cells, int broken_worlds = 0);
std::vector<VerifyCell> parse_cells(const std::string& json);

}  // namespace echelon
