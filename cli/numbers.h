// Bounds of numbers on a command line, with short messages whatever the bounds are.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace echelon::cli {

CLI::Validator integer_from(std::int64_t least, std::int64_t most);
CLI::Validator number_from(double least, double most);  // and finite

}  // namespace echelon::cli
