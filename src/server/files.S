/* The dashboard's files and the interface's description, as they are: what stands between the two labels. */
    .section .rodata

    .macro asset name, file
    .global is_asset_\name
    .global is_asset_\name\()_end
is_asset_\name:
    .incbin "\file"
is_asset_\name\()_end:
    .byte 0
    .endm

    asset index, "src/server/web/index.html"
    asset app, "src/server/web/app.js"
    asset style, "src/server/web/style.css"
    asset openapi, "src/server/openapi.json"
    asset chart, "build/chart.js"

    .section .note.GNU-stack, "", %progbits
