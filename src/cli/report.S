/* The parts of the evaluation's report, as they are: what stands between the two labels. */
    .section .rodata

    .macro part name, file
    .global is_report_\name
    .global is_report_\name\()_end
is_report_\name:
    .incbin "\file"
is_report_\name\()_end:
    .byte 0
    .endm

    part page, "src/cli/report/report.html"
    part draw, "src/cli/report/draw.js"
    part script, "src/cli/report/report.js"
    part style, "src/cli/report/report.css"
    part paper, "src/cli/report/paper.json"

    .section .note.GNU-stack, "", %progbits
