// The secret that all ranks of a job share. Every connection must prove it before any other byte is
// read. The launcher makes one for each job; across machines it comes from a file or the
// environment.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace echelon {

class Token {
 public:
  using Mac = std::array<std::byte, 32>;

  // 32 bytes from the system's random source.
  static Token random();

  // Any text of at least 16 characters, without leading and trailing white space. Throws
  // InvalidArgument (which does not repeat the text).
  static Token parse(std::string_view text);

  // Parses the file, which only its owner may access (mode 0600 or less). Throws InvalidArgument.
  static Token read(const std::filesystem::path& file);

  // ECHELON_TOKEN, else the file that ECHELON_TOKEN_FILE names, else the user's own token, made on
  // first use in $XDG_CONFIG_HOME/echelon/token (~/.config/echelon/token): enough for jobs on one
  // machine, or on machines that share a home.
  static Token find();

  // A text that parse() accepts, for the environment of the ranks.
  const std::string& text() const { return text_; }

  // HMAC-SHA256 of a message under this token.
  Mac mac(std::span<const std::byte> message) const;

 private:
  explicit Token(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// Compares in constant time.
bool equal(const Token::Mac& a, const Token::Mac& b);

// Fills bytes from the system's random source. Throws Error.
void fill_random(std::span<std::byte> bytes);

}  // namespace echelon
