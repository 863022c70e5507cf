// Commands that run as several ranks: the first process starts itself again once per rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace echelon {
class Group;
}

namespace echelon::cli {

// If a launcher has started this process as a rank, runs `body` (on its own core if there are
// enough). Otherwise starts `world` ranks with the same command line and returns their exit code.
// `set` are options of net and comm.
int run_as_ranks(int world, const std::vector<std::string>& set,
                 const std::function<void(Group&)>& body);

// The words of this process's command line.
std::vector<std::string> own_command_line();

// "64,4Ki,1Mi" as bytes. Throws InvalidArgument.
std::vector<std::size_t> parse_sizes(const std::string& text);

}  // namespace echelon::cli
