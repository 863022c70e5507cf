// Names by pattern: * stands for any characters, also none. Nothing else is special.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace echelon {

// Whether the whole name matches. Takes at most the product of the two lengths.
bool glob_matches(std::string_view pattern, std::string_view name);

// The names most like a pattern that matches none of them: those that share the longest run of
// characters with it. At most `most`, in their order; empty if none shares three characters.
std::vector<std::string> near_names(std::string_view pattern, const std::vector<std::string>& names,
                                    std::size_t most = 3);

}  // namespace echelon
