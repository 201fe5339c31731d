# libmagneto_codegen: loop kernels to machine code. LLVM is linked into it statically and hidden; it holds neither Python
# nor PyTorch, and is loaded when the first kernel is compiled. A machine without LLVM takes a library built elsewhere:
# -DMAGNETO_CODEGEN_LIBRARY=<file>.
set(MAGNETO_CODEGEN_LIBRARY "" CACHE FILEPATH "A finished libmagneto_codegen.so, instead of building one with LLVM")

if(MAGNETO_CODEGEN_LIBRARY)
  if(SKBUILD)
    install(FILES ${MAGNETO_CODEGEN_LIBRARY} DESTINATION magneto RENAME libmagneto_codegen.so)
  else()
    add_custom_target(magneto_codegen ALL COMMAND ${CMAKE_COMMAND} -E copy_if_different ${MAGNETO_CODEGEN_LIBRARY}
                                                  ${MAGNETO_PACKAGE_DIR}/libmagneto_codegen.so)
  endif()
  return()
endif()

find_program(LLVM_CONFIG NAMES llvm-config-19 HINTS /usr/lib/llvm-19/bin)
if(NOT LLVM_CONFIG)
  message(FATAL_ERROR "LLVM 19 is missing. Install it (Debian, Ubuntu: apt-get install llvm-19-dev zlib1g-dev libzstd-dev), "
                      "or give a finished library with -DMAGNETO_CODEGEN_LIBRARY=<file>.")
endif()
execute_process(COMMAND ${LLVM_CONFIG} --includedir OUTPUT_VARIABLE LLVM_INCLUDE OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${LLVM_CONFIG} --libdir OUTPUT_VARIABLE LLVM_LIBDIR OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${LLVM_CONFIG} --link-static --libfiles x86codegen x86desc x86info core scalaropts transformutils
                OUTPUT_VARIABLE LLVM_ARCHIVES OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(LLVM_ARCHIVES)
find_library(ZLIB_ARCHIVE NAMES libz.a REQUIRED)
find_library(ZSTD_ARCHIVE NAMES libzstd.a REQUIRED)

file(GLOB codegen_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/codegen/llvm/*.cpp)
foreach(name shapes/expr shapes/knowledge shapes/expr_text loops/ir loops/parser loops/printer loops/verifier
             loops/normalize loops/sharing)
  list(APPEND codegen_sources ${CMAKE_SOURCE_DIR}/src/${name}.cpp)
endforeach()
add_library(magneto_codegen SHARED ${codegen_sources})
target_include_directories(magneto_codegen PRIVATE src)
target_include_directories(magneto_codegen SYSTEM PRIVATE ${LLVM_INCLUDE})
target_compile_options(magneto_codegen PRIVATE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
                                               -ffunction-sections -fdata-sections)
# The build id is the compiler's version for the cache on disk: src/cache.
target_link_options(magneto_codegen PRIVATE -Wl,--build-id=sha1 -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,-s -Wl,-Bsymbolic -Wl,--no-undefined)
target_link_libraries(magneto_codegen PRIVATE -Wl,--start-group ${LLVM_ARCHIVES} -Wl,--end-group ${ZSTD_ARCHIVE}
                                              ${ZLIB_ARCHIVE} pthread dl m)
if(SKBUILD)
  install(TARGETS magneto_codegen DESTINATION magneto)
else()
  set_target_properties(magneto_codegen PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${MAGNETO_PACKAGE_DIR})
endif()
