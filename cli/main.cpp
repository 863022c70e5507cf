// echelon: parses the command line and runs one subcommand.
// Exit codes: 0 done, 1 something failed, 2 the user's mistake, 69 another rank was lost,
// 130 interrupted (Ctrl-C, SIGTERM, SIGHUP); those of the ranks for launch.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/limits.h"
#include "cli/words.h"
#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/base/one_line.h"
#include "echelon/base/options.h"
#include "echelon/launch/launcher.h"

namespace echelon::cli {
namespace {

// CLI11 would only say that a subcommand is required.
void require_known_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return;
  const std::string near = nearest(argv[1], names);
  throw InvalidArgument(
      fmt::format("there is no command {}; {}", argv[1],
                  near.empty() ? "see echelon --help" : fmt::format("did you mean {}?", near)));
}

// CLI11 reads "--set KEY VALUE" as two words; it would take the second for a file or refuse it.
void require_assignments(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string_view key = argv[i + 1];
    if (argv[i] != std::string_view("--set") || key.find('=') != key.npos || key.starts_with('-'))
      continue;
    const bool value = i + 2 < argc && !std::string_view(argv[i + 2]).starts_with("--");
    throw InvalidArgument(fmt::format("--set takes KEY=VALUE: write --set {}={}", key,
                                      value ? argv[i + 2] : "VALUE"));
  }
}

// The fix for a command line that CLI11 refused: the nearest option, or the help to read.
std::string hint(const CLI::App& app, const CLI::Error& error) {
  const CLI::App* command = &app;
  std::string path = "echelon";
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  const std::string text = error.what();
  if (const auto flag = text.find("--"); flag != std::string::npos) {
    const std::string given = text.substr(flag, text.find_first_of(" =,:", flag) - flag);
    std::vector<std::string> names;
    for (const auto* option : command->get_options())
      for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    const std::string near = nearest(given, names);
    if (!near.empty() && near != given) return fmt::format("did you mean {}?", near);
  }
  return fmt::format("see {} --help", path);
}

// The words after -- of launch. CLI11 must not see them: it would split "[a,b]" in two.
std::vector<std::string> cut_program(int& argc, char** argv) {
  if (argc < 2 || argv[1] != std::string_view("launch")) return {};
  char** const end = argv + argc;
  char** const mark = std::find(argv, end, std::string_view("--"));
  if (mark == end) return {};
  argc = static_cast<int>(mark - argv);
  return {mark + 1, end};
}

int fail(const std::string& why, int exit_code) {
  end_with_an_error();
  log::error(why);
  return exit_code;
}

int run(int argc, char** argv) {
  CLI::App app("Echelon trains neural networks in C++ on LibTorch.", "echelon");
  app.require_subcommand(1);
  app.footer("Start with: echelon train     Help on one command: echelon train --help");
  app.failure_message([](const CLI::App* command, const CLI::Error& error) {
    return fmt::format("echelon: error: {}; {}\n", one_line(error.what()), hint(*command, error));
  });
  int exit_code = 0;
  add_train(app, exit_code);
  const std::vector<std::string> program = cut_program(argc, argv);
  add_launch(app, exit_code, program);
  add_bench(app, exit_code);
  add_topo(app, exit_code);
  add_verify(app, exit_code);
  add_export(app, exit_code);
  add_evaluate(app, exit_code);
  add_generate(app, exit_code);
  add_lab(app, exit_code);
  add_tokenize(app, exit_code);
  add_info(app, exit_code);
  add_version(app, exit_code);
  add_completion(app, exit_code);
  try {
    require_known_command(app, argc, argv);
    require_words(argc, argv);
    require_assignments(argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cout, std::cerr);
    return 2;
  } catch (const InvalidArgument& error) {
    return fail(one_line(error.what()), 2);
  } catch (const Corrupt& error) {
    return fail(one_line(error.what()), 2);
  } catch (const PeerLost& error) {
    return fail(error.what(), exit_after_lost_peer);
  } catch (const Error& error) {
    return fail(with_limit(error.what(), error), 1);
  } catch (const c10::Error& error) {
    return fail(with_limit(error.what_without_backtrace(), error), 1);
  } catch (const std::bad_alloc& error) {
    return fail(with_limit("there is not enough memory", error), 1);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(fmt::format("{}: {}", error.path1().string(), error.code().message()), 1);
  } catch (const std::exception& error) {
    return fail(with_limit(error.what(), error), 1);
  }
  return exit_code;
}

}  // namespace

}  // namespace echelon::cli

int main(int argc, char** argv) {
  echelon::cli::take_interrupts();
  return echelon::cli::run(argc, argv);
}
