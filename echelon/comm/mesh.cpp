#include "echelon/comm/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/comm/hosts.h"
#include "echelon/comm/texts.h"

namespace echelon {

namespace {

// The member for a dimension.
template <class Of>
auto& member(Of& of, Dimension along) {
  switch (along) {
    case Dimension::pipeline:
      return of.pipeline;
    case Dimension::data:
      return of.data;
    case Dimension::context:
      return of.context;
    case Dimension::expert:
      return of.expert;
    case Dimension::tensor:
      break;
  }
  return of.tensor;
}

// Dimensions that a user sets are always named; the others only if they have more than one rank.
bool is_named(Dimension one, const MeshShape& shape) {
  return (one != Dimension::context && one != Dimension::expert) || shape[one] != 1;
}

std::string named(const MeshShape& shape, Dimensions but = {}) {
  std::string text;
  for (const Dimension one : all_dimensions) {
    if (but.contains(one) || !is_named(one, shape)) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(one), shape[one]);
  }
  return text;
}

}  // namespace

int MeshShape::operator[](Dimension along) const { return member(*this, along); }
int& MeshShape::operator[](Dimension along) { return member(*this, along); }
int MeshPlace::operator[](Dimension along) const { return member(*this, along); }
int& MeshPlace::operator[](Dimension along) { return member(*this, along); }

std::string to_string(const MeshShape& shape) { return named(shape); }

MeshPlace place_at(const MeshShape& shape, int position) {
  MeshPlace place;
  for (auto one = all_dimensions.rbegin(); one != all_dimensions.rend(); ++one) {
    place[*one] = position % shape[*one];
    position /= shape[*one];
  }
  return place;
}

int position_of(const MeshShape& shape, const MeshPlace& place) {
  int position = 0;
  for (const Dimension one : all_dimensions) position = position * shape[one] + place[one];
  return position;
}

std::vector<int> group_of(const MeshShape& shape, const MeshPlace& place, Dimensions along) {
  std::vector<int> positions;
  for (int position = 0; position < shape.ranks(); ++position) {
    const MeshPlace there = place_at(shape, position);
    const bool is_member =
        std::all_of(all_dimensions.begin(), all_dimensions.end(),
                    [&](Dimension one) { return along.contains(one) || there[one] == place[one]; });
    if (is_member) positions.push_back(position);
  }
  return positions;
}

MeshShape mesh_shape(int ranks, const MeshShape& wanted) {
  constexpr int most = 1 << 20;                                // of each dimension
  constexpr std::int64_t most_before = std::int64_t{1} << 42;  // so that products do not overflow
  std::int64_t group = 1;
  bool can_be = ranks >= 1;
  for (const Dimension one : all_dimensions) {
    const bool is_open = one == Dimension::data && wanted.data == 0;
    can_be &= (wanted[one] >= 1 || is_open) && wanted[one] <= most;
    if (can_be && !is_open && group <= most_before) group *= wanted[one];
  }
  if (!can_be)
    throw InvalidArgument(
        fmt::format("a mesh of {} ranks, {}, cannot be: each is 1 or more, and a million at most",
                    ranks, named(wanted)));
  if (wanted.data > 0 && group != ranks)
    throw InvalidArgument(
        fmt::format("{} takes {} ranks, and there {} {}: start {}, or let data be what is left",
                    named(wanted), group, ranks == 1 ? "is" : "are", ranks, group));
  if (ranks % group != 0) {
    const std::int64_t below = ranks / group * group;
    const std::string nearest =
        below > 0 ? fmt::format("{} or {}", below, below + group) : fmt::format("{}", group);
    throw InvalidArgument(fmt::format("{} takes {} ranks or a multiple, and there {} {}: start {}",
                                      named(wanted, {Dimension::data}), group,
                                      ranks == 1 ? "is" : "are", ranks, nearest));
  }
  MeshShape shape = wanted;
  if (wanted.data == 0) shape.data = int(ranks / group);
  return shape;
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
  // A column for each place along the dimensions between pipeline and tensor.
  const int columns = shape.ranks() / (shape.pipeline * shape.tensor);
  const auto head = [&](int column) {
    const MeshPlace place = place_at(shape, column * shape.tensor);
    std::string text = fmt::format("data {}", place.data);
    for (const Dimension one : {Dimension::context, Dimension::expert})
      if (shape[one] > 1) text += fmt::format(" {} {}", name_of(one), place[one]);
    return text;
  };
  const auto box = [&](int stage, int column) {
    std::string ranks;
    int before = -1;  // the last host named
    for (int t = 0; t < shape.tensor; ++t) {
      const int rank = order[std::size_t((stage * columns + column) * shape.tensor + t)];
      const int host = numbered.of[std::size_t(rank)];
      if (several && std::exchange(before, host) != host)
        ranks += fmt::format("{}h{}:", t > 0 ? " " : "", host);
      ranks += fmt::format(" {:>{}}", rank, digits);
    }
    return fmt::format("[{} ]", ranks);
  };
  std::size_t widest = head(columns - 1).size();
  for (int stage = 0; stage < shape.pipeline; ++stage)
    for (int column = 0; column < columns; ++column)
      widest = std::max(widest, box(stage, column).size());
  const int in_a_row = std::max(1, (width - 9) / int(widest + 2));
  for (int first = 0; first < columns; first += in_a_row) {
    const int end = std::min(columns, first + in_a_row);
    picture += fmt::format("\n{:9}", "");
    for (int c = first; c < end; ++c) picture += fmt::format("  {:<{}}", head(c), widest);
    for (int s = 0; s < shape.pipeline; ++s) {
      picture += fmt::format("\n{:9}", fmt::format("stage {}", s));
      for (int c = first; c < end; ++c) picture += fmt::format("  {:<{}}", box(s, c), widest);
    }
    picture += "\n";
  }
  if (several) {
    picture += "\n";
    for (std::size_t h = 0; h < numbered.names.size(); ++h)
      picture += fmt::format("h{} is {}\n", h, numbered.names[h]);
  }
  // Removes trailing blanks of the last column.
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

const std::shared_ptr<Communicator>& Mesh::along(Dimension dimension) const {
  return member(*this, dimension);
}

std::shared_ptr<Communicator> Mesh::over(Dimensions dimensions) {
  Dimensions wide;  // dimensions with several ranks
  std::shared_ptr<Communicator> one_of_them;
  int count = 0;
  for (const Dimension one : all_dimensions) {
    if (!dimensions.contains(one)) continue;
    if (shape[one] > 1) {
      wide.add(one);
      ++count;
    }
    if (shape[one] > 1 || !one_of_them) one_of_them = along(one);
  }
  if (count <= 1) return one_of_them;
  if (const auto it = made.find(wide); it != made.end()) return it->second;
  const auto positions = group_of(shape, place, wide);
  const bool is_all =
      int(positions.size()) == all->size() && std::is_sorted(order.begin(), order.end());
  return made[wide] = is_all ? all : all->split(positions.front(), position_of(shape, place));
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
    for (const int position : group_of(shape, there, batch_dimensions))
      on.push_back(hosts[std::size_t(rank_at(place_at(shape, position)))]);
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
  mesh.place = place_at(shape, position);
  for (auto one = all_dimensions.rbegin(); one != all_dimensions.rend(); ++one) {
    if (shape[*one] == 1) continue;
    const int first = group_of(shape, mesh.place, {*one}).front();
    member(mesh, *one) = ranks->split(first, position);
  }
  mesh.all = std::move(ranks);
  return mesh;
}

}  // namespace echelon
