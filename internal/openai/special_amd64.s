#include "textflag.h"

// SPECIAL sets the bytes of b whose counterparts in a are a quote, a backslash or a control character.
// Flipping the second bit of each byte turns a quote, 0x22, into 0x20, leaves control characters below
// 0x20 and moves no other byte to 0x20 or below: see specialMask.
#define SPECIAL(a, b, c) \
	MOVO    a, b   \
	PCMPEQB X15, b \
	PXOR    X13, a \
	MOVO    a, c   \
	PMINUB  X14, c \
	PCMPEQB a, c   \
	POR     c, b

#define FILL(byte, x) \
	MOVQ       $byte, DX \
	MOVQ       DX, x     \
	PUNPCKLQDQ x, x

// func skipPlain(p []byte) int
TEXT ·skipPlain(SB), NOSPLIT, $0-32
	MOVQ p_base+0(FP), SI
	MOVQ p_len+8(FP), CX
	XORQ AX, AX
	FILL(0x0202020202020202, X13)
	FILL(0x2020202020202020, X14)
	FILL(0x5c5c5c5c5c5c5c5c, X15)

sixtyfour:
	LEAQ     64(AX), DX
	CMPQ     DX, CX
	JA       sixteen
	MOVOU   0(SI)(AX*1), X0
	SPECIAL(X0, X1, X2)
	MOVOU   16(SI)(AX*1), X3
	SPECIAL(X3, X4, X5)
	MOVOU   32(SI)(AX*1), X6
	SPECIAL(X6, X7, X8)
	MOVOU   48(SI)(AX*1), X9
	SPECIAL(X9, X10, X11)
	MOVO     X1, X0
	POR      X4, X0
	POR      X7, X0
	POR      X10, X0
	PMOVMSKB X0, BX
	TESTL    BX, BX
	JNZ      combine
	MOVQ     DX, AX
	JMP      sixtyfour

combine:
	PMOVMSKB X1, BX
	PMOVMSKB X4, R8
	PMOVMSKB X7, R9
	PMOVMSKB X10, R10
	SHLQ     $16, R8
	SHLQ     $32, R9
	SHLQ     $48, R10
	ORQ      R8, BX
	ORQ      R10, R9
	ORQ      R9, BX
	JMP      found

sixteen:
	LEAQ     16(AX), DX
	CMPQ     DX, CX
	JA       done
	MOVOU    (SI)(AX*1), X0
	SPECIAL(X0, X1, X2)
	PMOVMSKB X1, BX
	TESTL    BX, BX
	JNZ      found
	MOVQ     DX, AX
	JMP      sixteen

found:
	BSFQ BX, BX
	ADDQ BX, AX

done:
	MOVQ AX, ret+24(FP)
	RET
