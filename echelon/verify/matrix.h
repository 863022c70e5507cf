// The matrix of meshes that `echelon verify` runs: all factorings of the worlds 1 to 8 and all
// options of a job on a mesh, pruned pairwise.
//
// A choice has a value for every factor. A job allows millions of choices. The matrix has only as
// many as are needed for every pair of compatible values of two factors to occur together, so a
// failure of two options in combination shows. The matrix is a pure function: the same cells
// everywhere, in the same order.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "echelon/job/options.h"

namespace echelon {

struct MeshShape;

namespace matrix {
constexpr int largest_world = 8;
enum Factor : std::size_t {
  mesh,
  zero,
  schedule,
  recompute,
  precision,
  sums,
  sequence,
  tied,
  optimizer,
  clip,
  micro_batches,
  dropout,
  scatter,
  offload,
  family,
  lora,
};
}  // namespace matrix

struct MatrixFactor {
  std::string name;
  std::vector<std::string> values;
};
// In the order above. A mesh is "2x1x4": pipeline x data x tensor.
const std::vector<MatrixFactor>& matrix_factors();

// The index of the chosen value, by matrix::Factor; -1: not chosen yet.
using MatrixChoice = std::vector<int>;

// Whether a job allows the values chosen so far. False for what a job refuses (zero.offload without
// parallel.zero) and for what has no effect (a schedule without a pipeline).
bool can_go_together(const MatrixChoice& choice);

// Covers all pairs, and every mesh, since meshes are values of a factor.
std::vector<MatrixChoice> pairwise_choices();
// A few of them, for worlds of 2, 3, 4 and 8: covers every value of every factor except the mesh,
// and tensor groups with and without sequence parallelism.
std::vector<MatrixChoice> quick_choices();

MeshShape shape_of(const MatrixChoice& choice);
int world_of(const MatrixChoice& choice);
std::string name_of(const MatrixChoice& choice);  // "2x2x1, ZeRO 3, 1f1b, bf16, …"

// The job: a model whose six blocks, embedding and head can be eight stages, with heads and tokens
// that divide by the tensor group. `folder` is for offload to disk.
JobOptions job_of(const MatrixChoice& choice, const std::string& folder);

}  // namespace echelon
