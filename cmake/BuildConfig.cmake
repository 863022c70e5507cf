# Writes echelon/base/build_config.h with the results of configuring. The commit is in a separate source, which is
# checked at every build and changes only with the commit, so that one file is compiled again and not all.

execute_process(
  COMMAND "${ECHELON_PYTHON}" -c "import sysconfig; print(sysconfig.get_paths()['stdlib'])"
  OUTPUT_VARIABLE ECHELON_STDLIB_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

set(ECHELON_HAS_CUDA 0)
if(TORCH_HAS_CUDA)
  set(ECHELON_HAS_CUDA 1)
endif()
set(ECHELON_HAS_LZMA 0)
if(ECHELON_LZMA)
  set(ECHELON_HAS_LZMA 1)
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/build_config.h.in"
               "${PROJECT_BINARY_DIR}/generated/echelon/base/build_config.h" @ONLY)

set(ECHELON_COMMIT_SOURCE "${PROJECT_BINARY_DIR}/generated/echelon/base/build_commit.cpp")
set(commit_command "${CMAKE_COMMAND}" "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}" "-DOUTPUT=${ECHELON_COMMIT_SOURCE}"
                   -P "${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake")
execute_process(COMMAND ${commit_command} COMMAND_ERROR_IS_FATAL ANY)
add_custom_target(echelon_commit COMMAND ${commit_command} BYPRODUCTS "${ECHELON_COMMIT_SOURCE}" VERBATIM)
