#include "echelon/comm/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/comm/hosts.h"
#include "echelon/comm/texts.h"

namespace echelon {

std::string to_string(const MeshShape& shape) {
  return fmt::format("pipeline {} x data {} x tensor {}", shape.pipeline, shape.data, shape.tensor);
}

MeshPlace place_at(const MeshShape& shape, int position) {
  return {.pipeline = position / (shape.data * shape.tensor),
          .data = position / shape.tensor % shape.data,
          .tensor = position % shape.tensor};
}

int position_of(const MeshShape& shape, const MeshPlace& place) {
  return (place.pipeline * shape.data + place.data) * shape.tensor + place.tensor;
}

MeshShape mesh_shape(int ranks, int pipeline, int data, int tensor) {
  constexpr int most = 1 << 20;  // of each, so that products stay whole numbers
  if (ranks < 1 || pipeline < 1 || data < 0 || tensor < 1 || pipeline > most || data > most ||
      tensor > most)
    throw InvalidArgument(fmt::format(
        "a mesh of {} ranks, pipeline {} x data {} x tensor {}, cannot be: each is 1 or more, and a million at most",
        ranks, pipeline, data, tensor));
  const std::int64_t group = std::int64_t(pipeline) * tensor * std::max(1, data);
  if (data > 0 && group != ranks)
    throw InvalidArgument(fmt::format(
        "pipeline {} x data {} x tensor {} takes {} ranks, and there {} {}: start {}, or let data "
        "be what is left",
        pipeline, data, tensor, group, ranks == 1 ? "is" : "are", ranks, group));
  if (ranks % group != 0) {
    const std::int64_t below = ranks / group * group;
    const std::string nearest =
        below > 0 ? fmt::format("{} or {}", below, below + group) : fmt::format("{}", group);
    throw InvalidArgument(fmt::format(
        "pipeline {} x tensor {} takes {} ranks or a multiple, and there {} {}: start {}", pipeline,
        tensor, group, ranks == 1 ? "is" : "are", ranks, nearest));
  }
  return {.pipeline = pipeline, .data = ranks / (pipeline * tensor), .tensor = tensor};
}

std::vector<int> mesh_order(const std::vector<std::string>& hosts) {
  std::vector<int> order;
  for (const auto& ranks : number_hosts(hosts).ranks)
    order.insert(order.end(), ranks.begin(), ranks.end());
  return order;
}

bool tensor_within_hosts(const MeshShape& shape, const std::vector<std::string>& hosts) {
  const auto order = mesh_order(hosts);
  for (int position = 0; position < shape.ranks(); ++position) {
    const int first = position / shape.tensor * shape.tensor;
    if (hosts[std::size_t(order[std::size_t(position)])] !=
        hosts[std::size_t(order[std::size_t(first)])])
      return false;
  }
  return true;
}

std::string draw_mesh(const MeshShape& shape, const std::vector<std::string>& hosts, int width) {
  const auto order = mesh_order(hosts);
  const Hosts numbered = number_hosts(hosts);
  const bool several = numbered.names.size() > 1;
  const auto digits = fmt::formatted_size("{}", shape.ranks() - 1);
  std::string picture =
      fmt::format("{} rank{} on {} host{}: {}", shape.ranks(), shape.ranks() > 1 ? "s" : "",
                  numbered.names.size(), several ? "s" : "", to_string(shape));
  if (several && shape.tensor > 1)
    picture += tensor_within_hosts(shape, hosts) ? ", tensor groups within a host"
                                                 : ", tensor groups span hosts";
  picture += "\n";
  const auto box = [&](int stage, int data) {
    std::string ranks;
    int before = -1;  // the host that was named last
    for (int t = 0; t < shape.tensor; ++t) {
      const int rank = order[std::size_t(position_of(shape, {stage, data, t}))];
      const int host = numbered.of[std::size_t(rank)];
      if (several && std::exchange(before, host) != host)
        ranks += fmt::format("{}h{}:", t > 0 ? " " : "", host);
      ranks += fmt::format(" {:>{}}", rank, digits);
    }
    return fmt::format("[{} ]", ranks);
  };
  std::size_t widest = fmt::formatted_size("data {}", shape.data - 1);
  for (int position = 0; position < shape.ranks(); position += shape.tensor) {
    const MeshPlace place = place_at(shape, position);
    widest = std::max(widest, box(place.pipeline, place.data).size());
  }
  const int in_a_row = std::max(1, (width - 9) / int(widest + 2));
  for (int first = 0; first < shape.data; first += in_a_row) {
    const int end = std::min(shape.data, first + in_a_row);
    picture += fmt::format("\n{:9}", "");
    for (int d = first; d < end; ++d)
      picture += fmt::format("  {:<{}}", fmt::format("data {}", d), widest);
    for (int s = 0; s < shape.pipeline; ++s) {
      picture += fmt::format("\n{:9}", fmt::format("stage {}", s));
      for (int d = first; d < end; ++d) picture += fmt::format("  {:<{}}", box(s, d), widest);
    }
    picture += "\n";
  }
  if (several) {
    picture += "\n";
    for (std::size_t h = 0; h < numbered.names.size(); ++h)
      picture += fmt::format("h{} is {}\n", h, numbered.names[h]);
  }
  // Trailing blanks of the last column.
  std::string lines;
  for (std::size_t at = 0; at < picture.size();) {
    const auto end = picture.find('\n', at);
    auto line = picture.substr(at, end - at);
    line.erase(line.find_last_not_of(' ') + 1);
    lines += line + "\n";
    at = end + 1;
  }
  return lines;
}

int Mesh::rank_at(const MeshPlace& there) const {
  const int position = position_of(shape, there);
  return order.empty() ? position : order[std::size_t(position)];
}

bool Mesh::lie_alike(int stage, int other) const {
  const auto pattern = [this](int of_stage) {
    MeshPlace there = place;
    there.pipeline = of_stage;
    std::vector<std::string> on;
    for (there.data = 0; there.data < shape.data; ++there.data)
      on.push_back(hosts[std::size_t(rank_at(there))]);
    return number_hosts(on).of;
  };
  return pattern(stage) == pattern(other);
}

Mesh make_mesh(std::shared_ptr<Communicator> ranks, const MeshShape& shape) {
  if (shape.ranks() != ranks->size())
    throw InvalidArgument(fmt::format("a mesh of {} takes {} ranks, and there are {}",
                                      to_string(shape), shape.ranks(), ranks->size()));
  Mesh mesh;
  mesh.shape = shape;
  mesh.hosts = gather_texts(*ranks, ranks->host(), "hosts");
  mesh.order = mesh_order(mesh.hosts);
  const auto position =
      int(std::find(mesh.order.begin(), mesh.order.end(), ranks->rank()) - mesh.order.begin());
  const MeshPlace place = mesh.place = place_at(shape, position);
  const auto along = [&](int size, int colour, int key) {
    return size > 1 ? ranks->split(colour, key) : nullptr;
  };
  mesh.tensor = along(shape.tensor, place.pipeline * shape.data + place.data, place.tensor);
  mesh.data = along(shape.data, place.pipeline * shape.tensor + place.tensor, place.data);
  mesh.pipeline = along(shape.pipeline, place.data * shape.tensor + place.tensor, place.pipeline);
  mesh.all = std::move(ranks);
  return mesh;
}

}  // namespace echelon
