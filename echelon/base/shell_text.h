// Words of a command line for a shell.
#pragma once

#include <string>
#include <string_view>

namespace echelon {

// One word, quoted where a shell would read it as something else.
std::string shell_word(std::string_view word);

}  // namespace echelon
