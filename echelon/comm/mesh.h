// Ranks as a mesh: pipeline x data x context x expert x tensor (dimension.h).
//
// Tensor is the innermost dimension, because it communicates most, and pipeline is the outermost.
// Ranks of one host have neighbouring positions, whatever their numbers are. A tensor group
// therefore stays within a host if the group size divides the number of ranks of every host. A
// dimension of one rank costs nothing: it has no communicator.
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
// "pipeline 2 x data 4 x tensor 1": context and expert appear only if they have more than one rank.
std::string to_string(const MeshShape& shape);

// The place of a rank along each dimension.
struct MeshPlace {
  int pipeline = 0, data = 0, context = 0, expert = 0, tensor = 0;

  int operator[](Dimension along) const;
  int& operator[](Dimension along);
  bool operator==(const MeshPlace&) const = default;
};
MeshPlace place_at(const MeshShape& shape, int position);
int position_of(const MeshShape& shape, const MeshPlace& place);

// The positions that differ from a place only along these dimensions, including its own, ascending.
std::vector<int> group_of(const MeshShape& shape, const MeshPlace& place, Dimensions along);

// The shape over this many ranks. wanted.data = 0: all ranks that the other dimensions leave.
// Throws InvalidArgument if the ranks do not divide evenly, naming the nearest numbers that do.
MeshShape mesh_shape(int ranks, const MeshShape& wanted);

// By position: the rank there. `hosts` has the host of every rank, from Communicator::host.
std::vector<int> mesh_order(const std::vector<std::string>& hosts);

// Whether no tensor group spans two hosts.
bool tensor_within_hosts(const MeshShape& shape, const std::vector<std::string>& hosts);

// A picture: a row for each pipeline stage, a box for each tensor group. If the boxes would exceed
// `width` columns, the rows continue below.
std::string draw_mesh(const MeshShape& shape, const std::vector<std::string>& hosts,
                      int width = 88);

struct Mesh {
  MeshShape shape;
  MeshPlace place;
  std::vector<int> order;  // by position; empty: each rank at its own number
  std::vector<std::string> hosts;
  // All ranks, and the ranks that differ from this one along only one dimension, in the order of
  // their places; null if there is no other rank.
  std::shared_ptr<Communicator> all, pipeline, data, context, expert, tensor;

  const std::shared_ptr<Communicator>& along(Dimension dimension) const;
  // The ranks that differ from this one only along these dimensions, in the order of their places;
  // null if there is no other. Collective: all ranks must ask for the same sets in the same order.
  // Each communicator is created once.
  std::shared_ptr<Communicator> over(Dimensions dimensions);

  int rank_at(const MeshPlace& there) const;  // its rank in the job
  // Whether the ranks that share the batch of two stages are spread over hosts in the same way.
  bool lie_alike(int stage, int other) const;

  std::map<Dimensions, std::shared_ptr<Communicator>> made = {};  // created by over()
};

// Collective: all ranks pass the same shape.
Mesh make_mesh(std::shared_ptr<Communicator> ranks, const MeshShape& shape);

}  // namespace echelon
