// The matrix of meshes that `echelon verify` goes through: all factorings of the worlds 1 to 8, and
// everything that a job on a mesh can be told, pruned pairwise.
//
// A choice has a value for every factor. Tried are not all choices that a job allows (there are
// millions) but so many that every two values of two factors that can go together do so in one of
// them: what fails between two options shows. All of it is a pure function: the same cells
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
};
}  // namespace matrix

struct MatrixFactor {
  std::string name;
  std::vector<std::string> values;
};
// In the order above. A mesh is "2x1x4": pipeline x data x tensor.
const std::vector<MatrixFactor>& matrix_factors();

// By matrix::Factor, which of its values; -1: not chosen yet.
using MatrixChoice = std::vector<int>;

// Whether a job allows it, as far as it is chosen: what it refuses (zero.offload without
// parallel.zero) and what would say nothing (a schedule without a pipeline) is left out.
bool can_go_together(const MatrixChoice& choice);

// So that all pairs are there; with every mesh, since those are values of a factor.
std::vector<MatrixChoice> pairwise_choices();
// A few of them, of worlds of 2, 3, 4 and 8: every value of every factor but the mesh is there, and
// tensor groups with their rows split and whole.
std::vector<MatrixChoice> quick_choices();

MeshShape shape_of(const MatrixChoice& choice);
int world_of(const MatrixChoice& choice);
std::string name_of(const MatrixChoice& choice);  // "2x2x1, ZeRO 3, 1f1b, bf16, …"

// The job: a model whose six blocks, embedding and head can be eight stages, with heads and tokens
// that divide over the tensor group. `folder` is for what is kept on disk.
JobOptions job_of(const MatrixChoice& choice, const std::string& folder);

}  // namespace echelon
