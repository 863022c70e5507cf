# Third-party libraries: header-only ones from the system or from ECHELON_DEPS/include, GoogleTest as a
# library or from its sources. Makes echelon_deps::NAME for each and echelon_deps_headers for all headers.

add_library(echelon_deps_headers INTERFACE)
# An enum in JSON would silently be its number.
target_compile_definitions(echelon_deps_headers
                           INTERFACE SPDLOG_FMT_EXTERNAL=1 TOML_HEADER_ONLY=1 JSON_DISABLE_ENUM_SERIALIZATION=1)

function(echelon_header_dependency name header package)
  if(ECHELON_DEPS)
    find_path(ECHELON_${name}_INCLUDE ${header} PATHS "${ECHELON_DEPS}/include" NO_DEFAULT_PATH NO_CACHE)
  endif()
  find_path(ECHELON_${name}_INCLUDE ${header} NO_CACHE)
  if(NOT ECHELON_${name}_INCLUDE)
    message(FATAL_ERROR "${header} was not found: install ${package}, or set ECHELON_DEPS to a folder "
                        "made by './dev bundle'.")
  endif()
  add_library(echelon_deps_${name} INTERFACE)
  add_library(echelon_deps::${name} ALIAS echelon_deps_${name})
  target_include_directories(echelon_deps_${name} SYSTEM INTERFACE "${ECHELON_${name}_INCLUDE}")
  target_link_libraries(echelon_deps_headers INTERFACE echelon_deps_${name})
endfunction()

echelon_header_dependency(cli11 CLI/CLI.hpp libcli11-dev)
echelon_header_dependency(tomlplusplus toml++/toml.h libtomlplusplus-dev)
echelon_header_dependency(fmt fmt/format.h libfmt-dev)
echelon_header_dependency(spdlog spdlog/spdlog.h libspdlog-dev)
echelon_header_dependency(nlohmann_json nlohmann/json.hpp nlohmann-json3-dev)

# OpenSSL: proofs of the job's token, and TLS. Headers may come from ECHELON_DEPS/include if a machine has only the
# library.
find_path(OPENSSL_INCLUDE_DIR openssl/ssl.h)
if(NOT OPENSSL_INCLUDE_DIR AND ECHELON_DEPS)
  find_path(OPENSSL_INCLUDE_DIR openssl/ssl.h PATHS "${ECHELON_DEPS}/include" NO_DEFAULT_PATH)
endif()
if(NOT OPENSSL_INCLUDE_DIR)
  message(FATAL_ERROR "openssl/ssl.h was not found: install libssl-dev.")
endif()

# What a component may be built with or without (see Component.cmake).
set(ECHELON_PARTS "")
if(TORCH_HAS_CUDA)
  list(APPEND ECHELON_PARTS cuda)
endif()
if(ECHELON_TORCH)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    list(APPEND ECHELON_PARTS mpi)
  endif()
endif()

# NCCL: that of the wheel next to a CUDA torch, which torch itself loads; otherwise the system's.
if(TORCH_HAS_CUDA)
  cmake_path(GET TORCH_ROOT PARENT_PATH site_packages)
  find_path(ECHELON_NCCL_INCLUDE nccl.h PATHS "${site_packages}/nvidia/nccl/include" NO_DEFAULT_PATH NO_CACHE)
  find_path(ECHELON_NCCL_INCLUDE nccl.h NO_CACHE)
  find_file(ECHELON_NCCL_LIBRARY libnccl.so.2 PATHS "${site_packages}/nvidia/nccl/lib" "${TORCH_ROOT}/lib"
            NO_DEFAULT_PATH NO_CACHE)
  find_library(ECHELON_NCCL_LIBRARY NAMES libnccl.so.2 nccl NO_CACHE)
  if(ECHELON_NCCL_INCLUDE AND ECHELON_NCCL_LIBRARY)
    list(APPEND ECHELON_PARTS nccl)
    cmake_path(GET ECHELON_NCCL_LIBRARY PARENT_PATH nccl_dir)
    list(APPEND TORCH_LIBRARY_DIRS "${nccl_dir}")
  endif()
endif()

# io_uring, for offload to disk; without it, threads read and write.
find_path(ECHELON_URING_INCLUDE liburing.h NO_CACHE)
find_library(ECHELON_URING_LIBRARY uring NO_CACHE)
if(ECHELON_URING_INCLUDE AND ECHELON_URING_LIBRARY)
  list(APPEND ECHELON_PARTS uring)
endif()

# PCRE2, for tokenisers with patterns of their own, and utf8proc, for those that change the case or the normal form of a
# text. Other tokenisers work without.
find_path(ECHELON_PCRE2_INCLUDE pcre2.h NO_CACHE)
find_library(ECHELON_PCRE2_LIBRARY pcre2-8 NO_CACHE)
find_path(ECHELON_UTF8PROC_INCLUDE utf8proc.h NO_CACHE)
find_library(ECHELON_UTF8PROC_LIBRARY utf8proc NO_CACHE)
foreach(part pcre2 utf8proc)
  string(TOUPPER ${part} name)
  if(ECHELON_${name}_INCLUDE AND ECHELON_${name}_LIBRARY)
    list(APPEND ECHELON_PARTS ${part})
  else()
    message(STATUS "Some tokenisers are refused: ${part} was not found (package lib${part}-dev)")
  endif()
endforeach()

# xz, the baseline for a run's bits per byte. ECHELON_LZMA is the library to link, or empty.
set(ECHELON_LZMA "")
find_package(LibLZMA QUIET)
if(LIBLZMA_FOUND)
  set(ECHELON_LZMA lzma)
endif()

if(ECHELON_TESTS)
  if(NOT ECHELON_DEPS)
    find_package(GTest QUIET)
  endif()
  if(GTest_FOUND)
    add_library(echelon_deps::gtest ALIAS GTest::gtest_main)
  else()
    find_path(ECHELON_GTEST_SOURCE src/gtest-all.cc
              PATHS "${ECHELON_DEPS}/src/googletest" /usr/src/googletest/googletest NO_DEFAULT_PATH NO_CACHE)
    if(NOT ECHELON_GTEST_SOURCE)
      message(FATAL_ERROR "GoogleTest was not found: install libgtest-dev, set ECHELON_DEPS to a folder made "
                          "by './dev bundle', or leave the tests out with -DECHELON_TESTS=OFF.")
    endif()
    add_library(echelon_gtest STATIC "${ECHELON_GTEST_SOURCE}/src/gtest-all.cc"
                                     "${ECHELON_GTEST_SOURCE}/src/gtest_main.cc")
    target_include_directories(echelon_gtest PRIVATE "${ECHELON_GTEST_SOURCE}")
    target_include_directories(echelon_gtest SYSTEM PUBLIC "${ECHELON_GTEST_SOURCE}/include")
    target_link_libraries(echelon_gtest PUBLIC Threads::Threads)
    add_library(echelon_deps::gtest ALIAS echelon_gtest)
  endif()
endif()
