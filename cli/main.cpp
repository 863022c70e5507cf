// echelon: parses the command line and runs one subcommand.
// Exit codes: 0 done, 1 something failed, 2 the user's mistake, 130 interrupted.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "echelon/base/error.h"
#include "echelon/base/log.h"

namespace echelon::cli {
namespace {

std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  stop.store(true);
  std::signal(signal, SIG_DFL);
}

int run(int argc, char** argv) {
  CLI::App app("Echelon trains neural networks in C++ on LibTorch.", "echelon");
  app.require_subcommand(1);
  app.footer("Start with: echelon train     Help on one command: echelon train --help");
  int exit_code = 0;
  add_train(app, exit_code);
  add_generate(app, exit_code);
  add_info(app, exit_code);
  add_version(app, exit_code);
  add_completion(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cout, std::cerr);
    return 2;
  } catch (const InvalidArgument& error) {
    log::error(error.what());
    return 2;
  } catch (const Corrupt& error) {
    log::error(error.what());
    return 2;
  } catch (const Error& error) {
    log::error(error.what());
    return 1;
  } catch (const c10::Error& error) {
    log::error(error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    log::error(error.what());
    return 1;
  }
  return exit_code;
}

}  // namespace

const std::atomic<bool>& interrupted() { return stop; }

}  // namespace echelon::cli

int main(int argc, char** argv) {
  std::signal(SIGINT, echelon::cli::on_signal);
  std::signal(SIGTERM, echelon::cli::on_signal);
  return echelon::cli::run(argc, argv);
}
