// Commands that work as several ranks: the first process starts itself again as each of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace echelon {
class Group;
}

namespace echelon::cli {

// Runs `body` as a rank (on a core of its own where there are enough) where a launcher has started
// this process as one; else starts `world` ranks with the same command line and gives their exit
// code. `set` are options of net and comm.
int run_as_ranks(int world, const std::vector<std::string>& set,
                 const std::function<void(Group&)>& body);

// The words of this process's command line.
std::vector<std::string> own_command_line();

// "64,4Ki,1Mi" as bytes. Throws InvalidArgument.
std::vector<std::size_t> parse_sizes(const std::string& text);

}  // namespace echelon::cli
