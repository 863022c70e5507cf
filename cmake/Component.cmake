# A component is one folder of echelon/, or of another component, and one static library:
#
#   echelon_component(NAME SOURCES files… DEPENDS components or targets…)
#
# makes echelon_NAME (alias echelon::NAME), which sees the repository root and the components it depends on.
# Third-party headers are private to the sources: what a user includes needs torch and nothing else.
# ECHELON_PARTS are optional parts of a build: cuda.cpp and *_cuda.cpp are compiled only with that part,
# cuda_none.cpp and *_cuda_none.cpp (stubs that say it is missing) only without it; the same holds for mpi, nccl,
# pcre2, uring and utf8proc. A component with no source yet is an interface library.

include(GNUInstallDirs)

function(echelon_component name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  set(target echelon_${name})
  foreach(part cuda mpi nccl pcre2 uring utf8proc)
    if(part IN_LIST ECHELON_PARTS)
      list(FILTER ARG_SOURCES EXCLUDE REGEX "[/_]${part}_none\\.cpp$")
    else()
      list(FILTER ARG_SOURCES EXCLUDE REGEX "[/_]${part}\\.cpp$")
    endif()
  endforeach()
  set(depends "")
  foreach(dependency IN LISTS ARG_DEPENDS)
    if(dependency IN_LIST ECHELON_COMPONENTS)
      list(APPEND depends echelon_${dependency})
    else()
      list(APPEND depends ${dependency})
    endif()
  endforeach()

  set(scope INTERFACE)
  if(ARG_SOURCES)
    set(scope PUBLIC)
    add_library(${target} STATIC ${ARG_SOURCES})
  else()
    add_library(${target} INTERFACE)
  endif()
  add_library(echelon::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} ${scope} ${depends})
  if(ARG_SOURCES)
    if(name IN_LIST ECHELON_TORCH_FREE)
      echelon_private(${target} TORCH_FREE)
      echelon_precompile(${target} torch_free)
    else()
      echelon_private(${target})
      echelon_precompile(${target} torch)
    endif()
    target_link_libraries(${target} PRIVATE ${ECHELON_LZMA})
  endif()

  install(TARGETS ${target} EXPORT echelonTargets)
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE folder)
  install(DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder}
          FILES_MATCHING PATTERN "*.h")
endfunction()
