# More than a second of each compile is the precompiled header's: GCC instantiates the templates that wait in it anew for
# each file. So small files of a folder are compiled together, up to MAGNETO_BATCH_BYTES of source, and apart from them
# those that include PyTorch's own internals, which take seconds to parse. `-DMAGNETO_BATCH_BYTES=0` compiles each file by
# itself, as lint does: a file must include what it uses.
#
# A folder that is built again and again has the groups of a new clone: configuring (a third of a second) follows each
# edit, for a file that outgrew its group hides a missing include here and fails there. Sizes count in steps, so that few
# edits move a file to another group.
set(MAGNETO_BATCH_BYTES 48000 CACHE STRING "Files of a folder are compiled together up to so many bytes; 0: each by itself")
set(MAGNETO_BATCH_STEP 4000)

function(magneto_compile_in_batches target)
  get_target_property(sources ${target} SOURCES)
  list(SORT sources)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
  foreach(source IN LISTS sources)
    get_source_file_property(own ${source} SKIP_PRECOMPILE_HEADERS)
    if(own OR NOT source MATCHES "\\.cpp$" OR source MATCHES "/src/python/abi/") # the latter ask CPython for its internals
      continue()
    endif()
    file(STRINGS ${source} internals REGEX "^#include <(torch|pybind11)/" LIMIT_COUNT 1)
    file(SIZE ${source} bytes)
    math(EXPR bytes "(${bytes} + ${MAGNETO_BATCH_STEP} - 1) / ${MAGNETO_BATCH_STEP} * ${MAGNETO_BATCH_STEP}")
    cmake_path(GET source PARENT_PATH folder)
    file(RELATIVE_PATH kind ${CMAKE_SOURCE_DIR}/src ${folder})
    string(REGEX REPLACE "[^a-z0-9]" "_" kind "${kind}")
    if(source MATCHES "/src/(${aot_pattern})\\.cpp$") # cmake/aot.cmake takes these objects
      string(PREPEND kind "aot_library_")
    endif()
    set(most ${MAGNETO_BATCH_BYTES})
    if(internals)
      string(APPEND kind "_torch")
      math(EXPR most "${most} / 2")
    endif()
    if(NOT DEFINED number_${kind} OR left_${kind} LESS bytes)
      math(EXPR number_${kind} "0${number_${kind}} + 1")
      set(left_${kind} ${most})
    endif()
    math(EXPR left_${kind} "${left_${kind}} - ${bytes}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${kind}_${number_${kind}})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

