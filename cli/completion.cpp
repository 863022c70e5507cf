// Shell completion, made from the program's own description: subcommands, their options, and after
// --set every configuration key.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/commands.h"
#include "echelon/job/options.h"

namespace echelon::cli {
namespace {

// Of a command and of those below it, whose own names come first.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
    for (const auto& name : option_names(*command)) names.push_back(name);
  }
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string bash(const CLI::App& app) {
  std::vector<std::string> commands, keys;
  std::string cases;
  for (const auto* command : app.get_subcommands({})) {
    commands.push_back(command->get_name());
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(),
                         fmt::join(option_names(*command), " "));
  }
  JobOptions options;
  const Fields fields = fields_of(options);
  for (const auto& field : fields.all()) keys.push_back(field.key + "=");
  return fmt::format(R"(_echelon() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "{} --help" -- "$current"))
    return
  fi
  if [ "$previous" = --set ]; then
    [ -n "$ZSH_VERSION" ] || compopt -o nospace
    COMPREPLY=($(compgen -W "{}" -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  case $current in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) [ -n "$ZSH_VERSION" ] || compopt -o filenames; COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
}}
complete -F _echelon echelon
)",
                     fmt::join(commands, " "), fmt::join(keys, " "), cases);
}

}  // namespace

void add_completion(CLI::App& app, int& /*exit_code*/) {
  auto* command = app.add_subcommand("completion", "Print a completion script for a shell");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "Shell to print the script for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}))
      ->type_name("bash|zsh");
  command->footer(
      "Install:\n  bash:  eval \"$(echelon completion bash)\"   in ~/.bashrc\n"
      "  zsh:   eval \"$(echelon completion zsh)\"    in ~/.zshrc");
  command->callback([&app, shell] {
    // zsh runs the bash function through its own adapter.
    if (*shell == "zsh") fmt::print("autoload -Uz compinit bashcompinit\ncompinit\nbashcompinit\n");
    fmt::print("{}", bash(app));
  });
}

}  // namespace echelon::cli
