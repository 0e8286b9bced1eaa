# Functions whose CFI says what compilers hardly ever say; tests/live/test_odd_rules.py single-steps them.
# rdi points into `chain`, a list of functions: each calls the one that it points to with the rest of the list.
        .macro begin name
        .balign 64, 0xcc                # so that no call leads to what follows it closely, which is no jump
        .type \name, @function
\name:  .cfi_startproc
        .endm

        .macro done name
        .cfi_endproc
        .size \name, . - \name
        .endm

        .macro next
        mov (%rdi), %rax
        add $8, %rdi
        call *%rax
        .endm

        .text
begin enters
        enter $16, $1
        .cfi_def_cfa rbp, 16
        .cfi_offset rbp, -16
        next
        leave
        .cfi_def_cfa rsp, 8
        ret
done enters

begin by_rbx                            # the CFA is computed from rbx
        push %rbx
        .cfi_def_cfa_offset 16
        .cfi_offset rbx, -16
        mov %rsp, %rbx
        .cfi_def_cfa_register rbx
        and $-64, %rsp
        sub $192, %rsp
        next
        mov %rbx, %rsp
        .cfi_def_cfa_register rsp
        pop %rbx
        .cfi_def_cfa_offset 8
        ret
done by_rbx

begin by_value                          # DW_CFA_val_expression: rbx ^ 0x55
        xor $0x55, %rbx
        .cfi_escape 0x16, 3, 5, 0x73, 0, 0x08, 0x55, 0x27
        push %rbp
        .cfi_def_cfa_offset 16
        .cfi_escape 0x10, 6, 2, 0x40, 0x1c      # DW_CFA_expression: rbp at CFA - 16
        next
        pop %rbp
        .cfi_def_cfa_offset 8
        .cfi_restore rbp
        xor $0x55, %rbx
        .cfi_restore rbx
        ret
done by_value

begin in_register                       # rbp is in r14
        push %r14
        .cfi_def_cfa_offset 16
        .cfi_offset r14, -16
        mov %rbp, %r14
        .cfi_register rbp, r14
        xor %ebp, %ebp
        next
        mov %r14, %rbp
        .cfi_restore rbp
        pop %r14
        .cfi_def_cfa_offset 8
        .cfi_restore r14
        ret
done in_register

begin by_word                           # DW_CFA_def_cfa_expression: the word at rsp + 24
        lea 8(%rsp), %r10
        sub $40, %rsp
        .cfi_def_cfa_offset 48
        mov %r10, 24(%rsp)
        .cfi_escape 0x0f, 3, 0x77, 24, 0x06
        next
        mov 24(%rsp), %r10
        lea -8(%r10), %rsp
        .cfi_def_cfa rsp, 8
        ret
done by_word

begin moved                             # DW_CFA_val_offset: the CFA is not the caller's rsp
        sub $24, %rsp
        .cfi_def_cfa_offset 40
        .cfi_offset rip, -16
        .cfi_escape 0x14, 7, 1
        next
        add $24, %rsp
        .cfi_def_cfa_offset 8
        .cfi_offset rip, -8
        .cfi_restore rsp
        ret
done moved

begin remembers                         # states within states, in a loop
        push %r12
        .cfi_def_cfa_offset 16
        .cfi_offset r12, -16
        mov $2, %r12d
1:      .cfi_remember_state
        test $1, %r12b
        je 2f
        push %rdi
        .cfi_adjust_cfa_offset 8
        .cfi_remember_state
        sub $32, %rsp
        .cfi_adjust_cfa_offset 32
        next
        add $32, %rsp
        .cfi_restore_state
        pop %rdi
        .cfi_adjust_cfa_offset -8
        jmp 3f
2:      .cfi_restore_state
        push %rdi
        .cfi_adjust_cfa_offset 8
        next
        pop %rdi
        .cfi_adjust_cfa_offset -8
3:      dec %r12
        jnz 1b
        pop %r12
        .cfi_def_cfa_offset 8
        ret
done remembers

begin old                               # DW_CFA_def_cfa_sf, GNU_negative_offset_extended, GNU_args_size, nop
        push %rbp
        .cfi_escape 0x12, 7, 0x7e
        .cfi_escape 0x2f, 6, 2
        mov %rsp, %rbp
        .cfi_def_cfa_register rbp
        sub $48, %rsp
        .cfi_escape 0x2e, 0x20, 0, 0
        next
        .cfi_escape 0x2e, 0
        leave
        .cfi_def_cfa rsp, 8
        ret
done old

begin far                               # DW_CFA_advance_loc4
        push %rbx
        .cfi_def_cfa_offset 16
        .cfi_offset rbx, -16
        jmp 1f
        .skip 70000, 0x90
1:      sub $32, %rsp
        .cfi_def_cfa_offset 48
        next
        add $32, %rsp
        .cfi_def_cfa_offset 16
        pop %rbx
        .cfi_def_cfa_offset 8
        ret
done far

begin juggles                           # an expression with dup, drop, swap, over, bra and arithmetic
        sub $24, %rsp
        .cfi_escape 0x0f, 19, 0x77, 32, 0x12, 0x13, 0x31, 0x16, 0x14, 0x13
        .cfi_escape 0x30, 0x28, 1, 0, 0x96, 0x16, 0x13, 0x23, 4, 0x34, 0x1c
        next
        add $24, %rsp
        .cfi_def_cfa rsp, 8
        ret
done juggles

begin windowed                          # DW_CFA_GNU_window_save, which is SPARC's
        sub $8, %rsp
        .cfi_def_cfa_offset 16
        .cfi_escape 0x2d
        next
        add $8, %rsp
        .cfi_def_cfa_offset 8
        ret
done windowed

begin leaf
        ret
done leaf

        .globl main
begin main
        sub $8, %rsp
        .cfi_def_cfa_offset 16
        int3
        lea chain(%rip), %rdi
        next
        int3
        xor %eax, %eax
        add $8, %rsp
        .cfi_def_cfa_offset 8
        ret
done main

        .section .data.rel.local, "aw"
        .balign 8
chain:  .quad old, by_rbx, by_value, enters, in_register, by_word, moved, remembers, far, juggles, windowed, leaf
        .section .note.GNU-stack, "", @progbits
