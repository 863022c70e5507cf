// Ranks as a mesh: pipeline x data x context x expert x tensor (dimension.h).
//
// Positions are counted with tensor innermost, since it talks most, and pipeline outermost. Ranks
// of one host have neighbouring positions whatever their numbers are, so a tensor group stays
// within a host wherever the ranks of every host divide by it. A dimension of one rank costs
// nothing: it has no communicator.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/comm/dimension.h"

namespace echelon {

struct MeshShape {
  int pipeline = 1, data = 1, context = 1, expert = 1, tensor = 1;

  int operator[](Dimension along) const;
  int& operator[](Dimension along);
  int ranks() const { return pipeline * data * context * expert * tensor; }
  bool operator==(const MeshShape&) const = default;
};
// "pipeline 2 x data 4 x tensor 1": context and expert only where they have more than one rank.
std::string to_string(const MeshShape& shape);

// Where a rank is, along each dimension.
struct MeshPlace {
  int pipeline = 0, data = 0, context = 0, expert = 0, tensor = 0;

  int operator[](Dimension along) const;
  int& operator[](Dimension along);
  bool operator==(const MeshPlace&) const = default;
};
MeshPlace place_at(const MeshShape& shape, int position);
int position_of(const MeshShape& shape, const MeshPlace& place);

// The positions that differ from a place along these dimensions alone, its own included, ascending.
std::vector<int> group_of(const MeshShape& shape, const MeshPlace& place, Dimensions along);

// The shape over so many ranks; wanted.data = 0: what the others leave. Throws InvalidArgument
// where it does not come out even, naming the nearest numbers of ranks that do.
MeshShape mesh_shape(int ranks, const MeshShape& wanted);

// By position: the rank there. `hosts`: of every rank, as Communicator::host gives them.
std::vector<int> mesh_order(const std::vector<std::string>& hosts);

// Whether no tensor group spans two hosts.
bool tensor_within_hosts(const MeshShape& shape, const std::vector<std::string>& hosts);

// A picture: a row for each pipeline stage, a box for each tensor group. Where boxes would pass
// `width` columns, the rows go on below.
std::string draw_mesh(const MeshShape& shape, const std::vector<std::string>& hosts,
                      int width = 88);

struct Mesh {
  MeshShape shape;
  MeshPlace place;
  std::vector<int> order;  // by position; empty: each rank at its own
  std::vector<std::string> hosts;
  // Of this rank: all ranks, and those that differ from it along one dimension alone, in the order
  // of their places; null where there is no other.
  std::shared_ptr<Communicator> all, pipeline, data, context, expert, tensor;

  const std::shared_ptr<Communicator>& along(Dimension dimension) const;
  // Those that differ from it along these dimensions alone, in the order of their places; null
  // where there is no other. Collective: all ranks ask for the same sets in the same order. Each is
  // made once.
  std::shared_ptr<Communicator> over(Dimensions dimensions);

  int rank_at(const MeshPlace& there) const;  // of the job
  // Whether the ranks that share the batch of two stages are together on hosts in the same way.
  bool lie_alike(int stage, int other) const;

  std::map<Dimensions, std::shared_ptr<Communicator>> made = {};  // by over()
};

// Collective: all ranks give the same shape.
Mesh make_mesh(std::shared_ptr<Communicator> ranks, const MeshShape& shape);

}  // namespace echelon
