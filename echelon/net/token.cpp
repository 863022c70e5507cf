#include "echelon/net/token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pwd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/net/socket.h"

namespace echelon {

namespace {

constexpr std::size_t shortest = 16;
// Far more than a secret needs. A token is in the environment of every process of a job.
constexpr std::size_t longest = 4096;
constexpr std::size_t random_bytes = 32;

std::string_view without_white_space(std::string_view text) {
  constexpr std::string_view white = " \t\r\n\v\f";
  const auto first = text.find_first_not_of(white);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(white) - first + 1);
}

// Throws InvalidArgument. `source` says where the text came from; the text itself is never shown.
std::string_view checked(std::string_view text, std::string_view source) {
  text = without_white_space(text);
  if (text.size() < shortest) {
    throw InvalidArgument(
        fmt::format("the token of {} has {} characters, but needs at least {}: 'openssl rand -hex "
                    "32' makes a good one",
                    source, text.size(), shortest));
  }
  if (text.size() > longest) {
    throw InvalidArgument(
        fmt::format("the token of {} is longer than {} characters", source, longest));
  }
  if (text.find('\0') != text.npos) {
    throw InvalidArgument(fmt::format(
        "the token of {} holds a zero byte, which the environment of a process cannot carry",
        source));
  }
  return text;
}

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& reason) {
  throw InvalidArgument(fmt::format("cannot read the token file {}: {}", file.string(), reason));
}

// The text of a token file. All checks apply to the same open file, so that it cannot be replaced
// between them.
std::string read_secret(const std::filesystem::path& file) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  const Descriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw InvalidArgument(with_errno(fmt::format("cannot read the token file {}", file.string())));
  }
  if (!S_ISREG(status.st_mode)) refuse(file, "this is no regular file");
  if ((status.st_mode & 077) != 0) {
    refuse(file, fmt::format("others than its owner may use it (mode {:04o}): run 'chmod 600 {}', "
                             "and make a new token if others could have read it",
                             status.st_mode & 07777, file.string()));
  }
  // Longer than a token may be, to recognise one that is too long.
  std::string text(longest + 256, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const auto got = ::read(fd.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw InvalidArgument(
          with_errno(fmt::format("cannot read the token file {}", file.string())));
    }
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

std::filesystem::path home_folder() {
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') return home;
  passwd entry = {};
  passwd* found = nullptr;
  std::vector<char> buffer(1 << 14);
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr && found->pw_dir != nullptr && *found->pw_dir == '/') {
    return found->pw_dir;
  }
  throw InvalidArgument(
      "there is no token and no home folder to keep one in: set ECHELON_TOKEN or ECHELON_TOKEN_FILE");
}

std::filesystem::path own_token_file() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  // The XDG specification says to ignore a path that is not absolute.
  const bool usable = config != nullptr && *config == '/';
  const auto folder = usable ? std::filesystem::path(config) : home_folder() / ".config";
  return folder / "echelon" / "token";
}

// Creates the file unless another process does it first. A temporary file is written and then
// linked to the name, which succeeds for one process only and never exposes a partial file.
void make_token_file(const std::filesystem::path& file, const std::string& text) {
  const auto fail = [&] {
    throw Error(with_errno(
        fmt::format("cannot make the token file {} (ECHELON_TOKEN or ECHELON_TOKEN_FILE would be "
                    "used instead of it)",
                    file.string())));
  };
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  errno = error.value();
  if (error) fail();

  std::string aside = file.string() + ".XXXXXX";
  const Descriptor fd(::mkostemp(aside.data(), O_CLOEXEC));  // mode 0600
  if (!fd) fail();
  const std::string line = text + "\n";
  const bool written =
      ::write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
      ::fsync(fd.get()) == 0;
  const bool linked = written && (::link(aside.c_str(), file.c_str()) == 0 || errno == EEXIST);
  const int code = errno;
  ::unlink(aside.c_str());
  errno = code;
  if (!linked) fail();
}

}  // namespace

Token Token::random() {
  std::array<std::byte, random_bytes> bytes;
  fill_random(bytes);
  std::string text;
  for (const auto byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return Token(std::move(text));
}

Token Token::parse(std::string_view text) { return Token(std::string(checked(text, "this job"))); }

Token Token::read(const std::filesystem::path& file) {
  return Token(std::string(checked(read_secret(file), file.string())));
}

Token Token::find() {
  // A variable that is set but empty is reported as a mistake, not taken as a request for another
  // token.
  if (const char* text = std::getenv("ECHELON_TOKEN")) {
    return Token(std::string(checked(text, "ECHELON_TOKEN")));
  }
  if (const char* file = std::getenv("ECHELON_TOKEN_FILE")) return read(file);
  const auto file = own_token_file();
  if (::access(file.c_str(), F_OK) != 0) make_token_file(file, random().text());
  return read(file);
}

Token::Mac Token::mac(std::span<const std::byte> message) const {
  Mac mac;
  unsigned size = 0;
  const auto* const done =
      ::HMAC(EVP_sha256(), text_.data(), static_cast<int>(text_.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(),
             reinterpret_cast<unsigned char*>(mac.data()), &size);
  if (done == nullptr || size != mac.size()) {
    throw Error("cannot compute HMAC-SHA256: OpenSSL refuses it (is its configuration in order?)");
  }
  return mac;
}

bool equal(const Token::Mac& a, const Token::Mac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const auto got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Error(with_errno("cannot get random bytes from the system"));
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace echelon
