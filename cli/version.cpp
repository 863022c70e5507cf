#include <fmt/format.h>

#include "cli/commands.h"
#include "echelon/base/build_config.h"

namespace echelon::cli {

void add_version(CLI::App& app, int& /*exit_code*/) {
  auto* command = app.add_subcommand("version", "Show the version");
  command->footer("Example:\n  echelon version");
  command->callback([] {
    fmt::print("echelon {} ({}), torch {}\n", ECHELON_VERSION, ECHELON_COMMIT,
               ECHELON_TORCH_VERSION);
  });
}

}  // namespace echelon::cli
