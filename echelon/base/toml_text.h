// Values as they stand in a TOML file.
#pragma once

#include <string>
#include <string_view>

namespace echelon {

// The shortest digits that read back to the same double, with a point or an exponent so that TOML
// sees a float.
std::string toml_double(double value);

// A basic string, with quotes and escapes.
std::string toml_string(std::string_view text);

}  // namespace echelon
